-- title: Every position of the order is taken once
-- proves: g counts 1, 2, 3 … over events and answers to control records together: nothing was taken out of the order, and
--   nothing put into it.
-- how: Each position but the first must have its predecessor, and one holder. The last one of each batch must be there.
--   No window over the whole domain is needed, so the work is spread like the tables.
-- limits: grants is compacted: answers may be missing where lineage began late.
WITH holders AS (
  SELECT g, 'event' AS kind FROM events WHERE g <= (SELECT through_g FROM complete)
  UNION ALL
  SELECT g, kind FROM subscriptions WHERE g <= (SELECT through_g FROM complete)
),
positions AS (
  SELECT g, count(*) AS times, array_join(sort_array(collect_list(kind)), ', ') AS holders FROM holders GROUP BY g
),
first_one AS (
  SELECT CASE WHEN (SELECT began_late FROM complete) THEN min(g) ELSE 1 END AS g FROM positions
)
SELECT g, 'taken more than once' AS fault, holders FROM positions WHERE times > 1
UNION ALL
SELECT g - 1, 'missing, or the last of several', CAST(NULL AS STRING)
FROM positions AS here LEFT ANTI JOIN positions AS before ON before.g = here.g - 1
WHERE here.g > (SELECT g FROM first_one)
UNION ALL
SELECT g, 'the last of a batch, and missing', CAST(NULL AS STRING)
FROM (SELECT DISTINCT g FROM batches WHERE g <= (SELECT through_g FROM complete)) AS ends LEFT ANTI JOIN positions ON positions.g = ends.g
UNION ALL
SELECT g, 'below the first', holders FROM positions WHERE g < (SELECT g FROM first_one)
ORDER BY g
