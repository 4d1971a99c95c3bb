-- view: complete
-- title: How far the order is known in full
-- how: began_late says that lineage has not seen the domain's first batch. The lineage job reads stamps, answers and
--   receipts side by side, so one may be ahead of another. Through through_g every stamps partition's batches are here,
--   and every answer: batches say where the last one stands. Whatever was stamped before known_time is here; null where
--   that is not known.
WITH known AS (
  SELECT max(g) AS g, max(control_g) AS control_g, max(partitions) AS partitions, min(batch) AS first_batch,
    max(stamped_time) AS stamped_time
  FROM batches
  GROUP BY stamps_partition
),
answers AS (
  SELECT coalesce(max(g), 0) AS g FROM subscriptions
)
SELECT
  CASE WHEN count(*) < coalesce(max(partitions), 1) THEN 0
    WHEN max(known.control_g) <= max(answers.g) THEN min(known.g)
    ELSE least(min(known.g), max(answers.g)) END AS through_g,
  coalesce(max(known.g), 0) AS newest_g,
  coalesce(min(known.first_batch), 1) > 1 AS began_late,
  CASE WHEN count(*) = max(known.partitions) THEN min(known.stamped_time) END AS known_time
FROM known CROSS JOIN answers
