-- title: The events of each topic are numbered without a gap
-- proves: Within each topic n counts 1, 2, 3 … along g, and no place in the log is stamped twice.
-- how: Each topic's events, sorted by g, are compared with the one before. Where lineage began after batch 1, a topic's
--   first known number may be any.
-- subject: events
WITH numbered AS (
  SELECT topic, g, n, batch, kafka_topic, topic_id, partition, offset,
    lag(n) OVER (PARTITION BY topic ORDER BY g, n) AS n_before,
    count(*) OVER (PARTITION BY kafka_topic, topic_id, partition, offset) AS times_stamped
  FROM events
)
SELECT *
FROM numbered
WHERE times_stamped > 1
  OR n <> coalesce(n_before + 1, CASE WHEN (SELECT began_late FROM complete) THEN n ELSE 1 END)
ORDER BY topic, g
