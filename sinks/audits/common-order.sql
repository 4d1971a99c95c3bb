-- title: One order is common to all subscribers
-- proves: Some single order of all events agrees with what every subscriber received: there is no circle, such as r
--   receiving d before e, s e before f, and t f before d, where no two of them disagree.
-- how: From delivery indexes alone. Where all deliveries ascend in one number of the event, that number is a common order
--   (pairwise-order.sql tells why no trust in g is needed). Otherwise every circle has a step down: a delivery whose
--   number is below that of the same subscriber's delivery before it; and no circle goes past a number that no such step
--   goes past. So only what lies between the lowest and the highest of these steps is searched, by find_circle(): again
--   and again it takes away an event before which nobody has yet to receive another. What it cannot take away lies on
--   circles or behind them, and the shortest one through some event of a circle is shown. The work grows with the
--   deliveries searched.
-- limits: Not promised with min_subscriptions = 2; circles there are shown, and break no promise.
-- judges: min_subscriptions = 1
-- subject: deliveries
WITH steps AS (
  SELECT event, lag(event) OVER (PARTITION BY subscriber ORDER BY at) AS previous FROM first_deliveries
),
searched AS (
  SELECT min(event) AS low, max(previous) AS high FROM steps WHERE event < previous
),
suspects AS (
  SELECT subscriber, at,
    concat(event.kafka_topic, '[', event.partition, ']@', event.offset, ' (', event.topic_id, ')') AS event
  FROM first_deliveries CROSS JOIN searched
  WHERE event BETWEEN low AND high
)
SELECT * FROM find_circle(TABLE(suspects) WITH SINGLE PARTITION ORDER BY (subscriber, at))
