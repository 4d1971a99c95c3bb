-- title: Batches are whole, and follow each other
-- proves: In every stamps partition batches count up by one; all partitions say the same of a batch; its events are all
--   there; the places in the log only move on, and g never falls (a batch of events that name no topic takes no
--   position); a sequencer that was replaced writes nothing after its successor.
-- how: Each batch is compared with the one before in its partition, with the others of its number, and with its events;
--   where it ends in an event partition with the last batch before that advanced the same one, which may be any of those
--   before. What all stamps partitions say alike is looked at once, so the work grows with the partitions that advance.
-- limits: Where lineage began late, the first known end of an event partition has none before it to compare with.
-- subject: batches
WITH counted AS (
  SELECT stamps_partition, batch, incarnation, count(*) AS events, min(g) AS first_g, max(g) AS last_g
  FROM events GROUP BY stamps_partition, batch, incarnation
),
said AS (
  SELECT *,
    to_json(struct(partitions, incarnation, batch_time, cut, min_subscriptions, g, control_g,
      sort_array(next_offsets))) AS saying
  FROM batches
),
told AS (
  SELECT batch, next_offsets, explode(next_offsets) AS ends FROM (SELECT DISTINCT batch, next_offsets FROM batches)
),
moved AS (
  SELECT batch, next_offsets, ends.next_offset, max(ends.next_offset) OVER (
    PARTITION BY ends.kafka_topic, ends.topic_id, ends.partition
    ORDER BY batch RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS offset_before
  FROM told
),
stuck AS (
  SELECT DISTINCT batch, next_offsets FROM moved WHERE next_offset <= offset_before
),
compared AS (
  SELECT said.stamps_partition, said.batch, said.incarnation, said.g, said.control_g, said.partitions, said.events,
    lag(said.batch) OVER chain AS batch_before,
    lag(said.incarnation) OVER chain AS incarnation_before,
    lag(said.g) OVER chain AS g_before,
    stuck.batch IS NOT NULL AS is_stuck,
    min(saying) OVER (PARTITION BY said.batch) <> max(saying) OVER (PARTITION BY said.batch) AS disagrees,
    count(*) OVER (PARTITION BY said.batch) AS told_by,
    through_g
  FROM said CROSS JOIN complete
    LEFT JOIN stuck ON stuck.batch = said.batch AND stuck.next_offsets = said.next_offsets
  WINDOW chain AS (PARTITION BY said.stamps_partition ORDER BY said.batch)
),
faults AS (
  SELECT compared.stamps_partition, compared.batch, compared.incarnation, filter(array(
    CASE WHEN compared.batch <> batch_before + 1 THEN concat('follows batch ', batch_before) END,
    CASE WHEN compared.incarnation < incarnation_before THEN concat('follows incarnation ', incarnation_before) END,
    CASE WHEN compared.g < g_before THEN concat('ends at g ', compared.g, ', the batch before at ', g_before) END,
    CASE WHEN is_stuck THEN 'does not go on in the log' END,
    CASE WHEN disagrees THEN 'stamps partitions disagree on it' END,
    CASE WHEN compared.control_g > compared.g THEN 'ends before its last answer' END,
    CASE WHEN told_by <> partitions AND compared.g <= through_g
      THEN concat('in ', told_by, ' of ', partitions, ' stamps partitions') END,
    CASE WHEN compared.events <> coalesce(counted.events, 0)
      THEN concat(coalesce(counted.events, 0), ' of ', compared.events, ' events') END,
    CASE WHEN counted.first_g <= g_before OR counted.last_g > compared.g THEN 'holds events of other batches' END
  ), fault -> fault IS NOT NULL) AS found
  FROM compared LEFT JOIN counted ON counted.stamps_partition = compared.stamps_partition
    AND counted.batch = compared.batch AND counted.incarnation = compared.incarnation
)
SELECT stamps_partition, batch, incarnation, array_join(found, '; ') AS fault
FROM faults
WHERE size(found) > 0
UNION ALL
SELECT counted.stamps_partition, counted.batch, counted.incarnation, 'events of a batch that is not there'
FROM counted LEFT ANTI JOIN batches ON batches.stamps_partition = counted.stamps_partition
  AND batches.batch = counted.batch AND batches.incarnation = counted.incarnation
WHERE counted.batch <= (SELECT max(batch) FROM batches)
ORDER BY batch, stamps_partition
