"""Every limit on sizes and counts, in one place; units last in the names."""

MAX_CONTROL_BYTES = 1_000_000
"""A larger control record is answered by a rejection."""
MAX_ID_CHARS = 128
MAX_NONCE_CHARS = 64
MAX_TOPIC_CHARS = 255
"""Longest name of a pub/sub topic; a key or header that is longer cannot name one."""
MAX_TOPICS_PER_SUBSCRIPTION = 1_000
"""Groups are counted pair by pair: a thousand topics are half a million pairs, a second of work and 24 MB of state."""
MAX_TOPICS_PER_DOMAIN = 1_000_000
MAX_SUBSCRIPTIONS = 2_000_000
MAX_LEASE_S = 10 * 365 * 86_400
MAX_STAMPS_PARTITIONS = 1_024
MAX_SHARDS = 256
MAX_PART_BYTES = 600_000
"""Most bytes of one part of a stamps record (a single stamp may need more); Kafka's default limit is 1,048,588."""
MAX_ROW_BYTES = 16_000_000
"""Most bytes of a part that holds a single stamp; a record of the stamps topic may have 16 MiB."""
MAX_PARTS = 10_000
MAX_RAW_PART_BYTES = 64_000_000
"""Most bytes that one part may have when unpacked."""
MAX_PART_MEMORY_BYTES = 32_000_000
"""Most bytes of memory that the stamps of one part may take: half a million without entries, two million entries. On
the wire equal values take nothing, so this is what holds a hostile part down."""
MAX_DIRECTORY_BYTES = 32_000_000
"""Most bytes of a part's directory, which is JSON. It holds 10,000 names of the longest and dearest kind, or 400,000
usual ones: all that one event's group may have, since a job whose event has more cannot go on."""
MAX_JSON_UNITS = 1_500_000
"""Most values of a JSON text, where a list or an object counts as four: some 100 MB of memory. 400,000 names with their
ids and clocks are 1,200,000."""
MAX_ANSWER_BYTES = 16_777_216
"""Most bytes of an answer on grants, and of a saved position: more no record of these topics may have."""
MAX_BATCH_BYTES = 2_000_000_000
"""Most bytes of memory that the stamps of a batch may take in one stamps partition, all parts together: 35 million
stamps, or 100,000 (the default of max_events_per_batch) with an entry for each of 1,200 topics."""
MAX_STATE_BYTES = (1 << 31) - 1
"""Most bytes of a shard's state, which is one value to Spark; and of all parts of a snapshot together, as they came."""
MAX_STATE_UNITS = 60_000_000
"""Most values of a state's description, counted as those of JSON: 2,000,000 subscriptions of ten topics have them."""
MAX_COUNT = (1 << 62) - 1
"""Most that n, g or the number of anything may be: no domain gets there, and sums of two still have 64 bits."""
MAX_RECEIPTS_PER_RECORD = 100_000
MAX_RAW_RECEIPTS_BYTES = 24_000_000
"""Most bytes of a record of receipts when unpacked: 100,000 receipts take 7 MB and their names the rest."""
MAX_CUT_SOURCES = 100_000
"""Event partitions of a domain, as far as one cut may name them."""
MAX_KAFKA_TOPICS = 100_000
"""Event topics of a domain, those that were retired too."""
MAX_CUT_SLICES = 1 << 16
"""Looks within a batch, and one for what came behind the last."""
MAX_CUT_ADVANCES = 1_000_000
"""How often, in all slices of a cut together, a partition was further than in the look before."""
MAX_KAFKA_TOPIC_CHARS = 249
MAX_TOPIC_ID_CHARS = 64
MAX_PARTITION_NUMBER = 2**31 - 1
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999: what comes later is no time to Python or to Spark."""
