"""Benchmarks: ratios within one run, from one seed (docs/performance.md). `totalorder bench NAME`."""
