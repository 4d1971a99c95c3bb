-- view: taken
-- title: What each batch took of the event partitions, slice by slice
-- how: The parts of every cut that counts, one a row. Of several cuts of one number the last counts: those before it were
--   planned and never ran.
WITH last AS (
  SELECT cut, max(cuts_offset) AS cuts_offset FROM cuts GROUP BY cut
)
SELECT counting.cut, part.slice, part.kafka_topic, part.topic_id, part.partition, part.begin_offset, part.end_offset
FROM (
  SELECT cuts.cut, explode(taken) AS part
  FROM cuts LEFT SEMI JOIN last ON last.cut = cuts.cut AND last.cuts_offset = cuts.cuts_offset
) AS counting
