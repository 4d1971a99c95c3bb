-- title: Cuts follow each other without a hole
-- proves: Cuts count up by one; what a cut takes of a partition begins where the cut before ended there, and so do its
--   slices; a sequencer that was replaced writes none after its successor; batches come from cuts in the same order.
-- how: Each part is compared with the one before of its partition, and each cut and batch with the one before.
-- limits: A partition's first part has none before it to compare with: where it begins is taken as it is.
-- subject: cuts
WITH parts AS (
  SELECT *, lag(end_offset) OVER (
    PARTITION BY kafka_topic, topic_id, partition ORDER BY cut, slice, begin_offset
  ) AS end_before
  FROM taken
),
numbers AS (
  SELECT cut, max_by(incarnation, cuts_offset) AS incarnation FROM cuts GROUP BY cut
),
chain AS (
  SELECT here.cut, here.incarnation, before.cut AS cut_before, before.incarnation AS incarnation_before
  FROM numbers AS here LEFT JOIN numbers AS before ON before.cut = here.cut - 1
),
batch_chain AS (
  SELECT batch, cut, lag(batch) OVER chained AS batch_before, lag(cut) OVER chained AS cut_before
  FROM batches
  WINDOW chained AS (PARTITION BY stamps_partition ORDER BY batch)
)
SELECT cut, concat(kafka_topic, '[', partition, '] begins at ', begin_offset, ', and ended at ', end_before) AS fault
FROM parts WHERE begin_offset <> end_before OR end_offset <= begin_offset
UNION ALL
SELECT cut, 'the cut before is missing' FROM chain
WHERE cut_before IS NULL AND cut > (SELECT min(cut) FROM numbers)
UNION ALL
SELECT cut, concat('follows incarnation ', incarnation_before) FROM chain WHERE incarnation < incarnation_before
UNION ALL
SELECT DISTINCT cut, concat('batch ', batch, ' comes from it, and batch ', batch_before, ' from cut ', cut_before)
FROM batch_chain WHERE cut <= cut_before AND cut IN (SELECT cut FROM cuts)
ORDER BY cut, fault
