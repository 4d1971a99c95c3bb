-- title: No two subscribers disagree on the order of two events
-- proves: Any two events that two subscribers both received were received by both in the same order.
-- how: From delivery indexes alone. Give every event any number of its own. Where all deliveries of every subscriber
--   ascend in that number, no two can disagree: both follow the number. That takes one pass over the sorted deliveries.
--   The number is a guess, the g that receipts claim, made the event's own (first-deliveries.sql). A wrong g makes
--   deliveries descend in places; it cannot hide anything: if one subscriber received d before e and another e before d,
--   then d and e descend for one of the two, whatever their numbers are. So every disagreement lies among the events that
--   some subscriber received out of the number's order, and only those are compared, with each other subscriber that
--   received them too.
-- limits: Judges the first delivery of each event to each subscriber; duplicates.sql judges the others.
-- subject: deliveries
WITH marked AS (
  SELECT *,
    max(event) OVER (PARTITION BY subscriber ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > event
      AS follows_a_greater,
    min(event) OVER (PARTITION BY subscriber ORDER BY at DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) < event
      AS precedes_a_smaller
  FROM first_deliveries
),
compared AS (
  SELECT mine.subscriber AS one, theirs.subscriber AS other, mine.event, theirs.at AS other_at,
    lag(mine.event) OVER pair AS earlier,
    lag(theirs.at) OVER pair AS earlier_other_at
  FROM marked AS mine
  JOIN first_deliveries AS theirs ON theirs.event = mine.event AND theirs.subscriber <> mine.subscriber
  WHERE mine.follows_a_greater OR mine.precedes_a_smaller
  WINDOW pair AS (PARTITION BY mine.subscriber, theirs.subscriber ORDER BY mine.at)
)
SELECT one, other,
  concat(earlier.kafka_topic, '[', earlier.partition, ']@', earlier.offset, ' (', earlier.topic_id, ')')
    AS one_received_first,
  concat(event.kafka_topic, '[', event.partition, ']@', event.offset, ' (', event.topic_id, ')')
    AS other_received_first,
  other_at.delivery_index AS other_index, earlier_other_at.delivery_index AS other_index_of_ones_first
FROM compared
WHERE other_at < earlier_other_at
