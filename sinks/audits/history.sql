-- title: History of subscriber :subscriber
-- proves: Nothing; it shows each answer that the subscriber got, and what it received between two of them.
-- how: Answers and runs of deliveries (one for each generation and process), by position. Before the first grant the id
--   held nothing: a subscription that began in the past (start) has no receipts of that, and is not judged there.
-- judges: never
SELECT g, kind, generation, nonce, answered_time AS time,
  CASE WHEN kind = 'granted' AND g = min(CASE WHEN kind = 'granted' THEN g END) OVER ()
    THEN concat('not judged before g ', g, ', wherever start began') ELSE reason END AS reason,
  topics,
  CAST(NULL AS BIGINT) AS deliveries, CAST(NULL AS BIGINT) AS last_g
FROM subscriptions
WHERE subscriber = :subscriber
UNION ALL
SELECT min(g), 'received', generation, nonce, min(delivered_time), CAST(NULL AS STRING), sort_array(collect_set(topic)),
  count(*), max(g)
FROM deliveries
WHERE subscriber = :subscriber
GROUP BY generation, nonce
ORDER BY g
