"""The group keys of the shards: integers that Spark's hash partitioner sends to a shuffle partition of their own each.

The plain numbers 0…K-1 collide (of four shuffle partitions they use two), which would leave cores idle.
"""

_SEED = 42  # Spark's, for hash partitioning
_MASK = 0xFFFFFFFF


def shard_keys(shards: int) -> tuple[int, ...]:
    """Group key of each shard: of all integers from 0, the smallest that lands in shuffle partition `shard`."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < shards:
        found.setdefault(spark_hash(key) % shards, key)
        key += 1
    return tuple(found[shard] for shard in range(shards))


def spark_hash(value: int) -> int:
    """Spark SQL's `hash` of one 32-bit integer: Murmur3 (x86, 32 bits) of its four bytes, as a signed number."""
    k = _rotate(value * 0xCC9E2D51, 15) * 0x1B873593
    h = (_rotate(_SEED ^ (k & _MASK), 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return ((value << bits) | (value >> (32 - bits))) & _MASK
