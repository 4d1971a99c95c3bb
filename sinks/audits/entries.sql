-- title: Every entry of every timestamp is the true count
-- proves: Where the timestamp of an event says X: k, exactly k events of X stand before it in the order.
-- how: Recomputed from events alone. Events and entries of a topic are put in one line by g; the events passed so far
--   are counted, n is not used. The work grows with the number of entries.
-- limits: Where lineage began after batch 1, a topic's count starts at its first known number, and entries of a topic
--   without a known event are not judged.
-- subject: events
WITH line AS (
  SELECT topic AS counted, g, 1 AS is_event, n, CAST(NULL AS STRING) AS topic, CAST(NULL AS BIGINT) AS entry FROM events
  UNION ALL
  SELECT counted, g, 0, CAST(NULL AS BIGINT), topic, entry
  FROM events LATERAL VIEW explode(entries) AS counted, entry
),
counts AS (
  SELECT *,
    sum(is_event) OVER (PARTITION BY counted ORDER BY g, is_event ROWS UNBOUNDED PRECEDING) AS passed,
    CASE WHEN (SELECT began_late FROM complete) THEN min(n) OVER (PARTITION BY counted) - 1 ELSE 0 END AS unknown
  FROM line
)
SELECT topic, g, counted AS entry_topic, entry, passed + unknown AS true_count
FROM counts
WHERE is_event = 0 AND entry <> passed + unknown AND g <= (SELECT through_g FROM complete)
ORDER BY g, entry_topic
