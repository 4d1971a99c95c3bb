"""What benchmarks with a real broker and Spark share."""
