-- title: What came earlier stands earlier: the order goes slice by slice
-- proves: Within a batch no event of a later slice has a smaller g than one of an earlier slice. A slice is what was new
--   between two looks at the ends of all partitions: what was published after another event was acknowledged, and later
--   by more than a look's period and duration, is in a later slice, and stands behind it.
-- how: Events are joined to the parts of their batch's cut by their places in the log; each slice's least g must be greater
--   than all before it in the batch. That batches follow each other, batches.sql shows.
-- limits: Batches whose cut is not in the tables (yet, or any more) are not judged.
-- subject: cuts
WITH numbered AS (
  SELECT batch, max(cut) AS cut FROM batches GROUP BY batch
),
spans AS (
  SELECT events.batch, numbered.cut, taken.slice, min(events.g) AS first_g, max(events.g) AS last_g
  FROM events
    JOIN numbered ON numbered.batch = events.batch
    JOIN taken ON taken.cut = numbered.cut AND taken.kafka_topic = events.kafka_topic
      AND taken.topic_id = events.topic_id AND taken.partition = events.partition
      AND events.offset >= taken.begin_offset AND events.offset < taken.end_offset
  GROUP BY events.batch, numbered.cut, taken.slice
),
compared AS (
  SELECT *, max(last_g) OVER (
    PARTITION BY batch ORDER BY slice ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS g_before
  FROM spans
)
SELECT batch, cut, slice, first_g, g_before
FROM compared
WHERE first_g < g_before
ORDER BY batch, slice
