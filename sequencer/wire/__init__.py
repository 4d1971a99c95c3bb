"""What sequencer, subscriber and lineage say to each other: names, limits, and the bytes of every topic. Pure.

Every codec reads its input as hostile: what it may cost is checked before it is allocated (`budget`, `limits`).
docs/formats.md describes the bytes.
"""
