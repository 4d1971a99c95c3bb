-- title: The digests form one chain in each stamps partition
-- proves: Each batch was made on top of the batch before it as it stands here: none was exchanged later, and no two
--   sequencers wrote by turns.
-- how: previous_digest is compared with the digest of the batch before.
-- limits: A digest covers the whole content as it travels, in a hash that SQL does not have. The lineage job computes it
--   anew for every batch that it reads; here the chain is checked. The newest batch's own digest has no successor yet.
WITH chained AS (
  SELECT stamps_partition, batch, previous_digest, digest,
    lag(batch) OVER chain AS batch_before,
    lag(digest) OVER chain AS digest_before
  FROM batches
  WINDOW chain AS (PARTITION BY stamps_partition ORDER BY batch)
)
SELECT stamps_partition, batch, batch_before, previous_digest, digest_before
FROM chained
WHERE previous_digest <> digest_before
ORDER BY stamps_partition, batch
