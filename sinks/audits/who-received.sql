-- title: Who received event :n of topic :topic
-- proves: Nothing; it shows each delivery of one event, and what the subscriber received before and after it.
-- how: The neighbours are those in the subscriber's own order.
-- judges: never
WITH told AS (
  SELECT *, concat(topic, '#', n) AS name FROM deliveries
  WHERE subscriber IN (SELECT subscriber FROM deliveries WHERE topic = :topic AND n = :n)
),
neighbours AS (
  SELECT *, lag(name) OVER one AS before, lead(name) OVER one AS after
  FROM told
  WINDOW one AS (PARTITION BY subscriber ORDER BY generation, delivery_index)
)
SELECT subscriber, delivery_index, delivered_time, tag, before, after
FROM neighbours
WHERE topic = :topic AND n = :n
ORDER BY delivered_time
