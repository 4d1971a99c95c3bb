-- title: Nobody received what it did not hold
-- proves: Every delivery is of a topic that the subscriber held at the event's position, and none was made by a process
--   after another had taken its id over.
-- how: A grant reaches from its position to the next grant's; that of a subscription ended for good, to its end. (Of a
--   lease that ran out and was granted anew, the events in between may come: the subscriber goes on where it was.) A
--   process must not receive events past the first grant to another process that follows its own last one.
-- limits: Judges a subscriber from its first known answer on, where lineage began after that subscriber did. What was lost
--   before it was stamped may be of any topic where keys or headers name them, and is told to everybody.
-- subject: deliveries
WITH changes AS (
  SELECT *,
    first_value(CASE WHEN generation = 1 THEN 0 ELSE g END) OVER (PARTITION BY subscriber ORDER BY g) AS known_from_g,
    lead(g) OVER (PARTITION BY subscriber ORDER BY g) AS next_g,
    lead(reason) OVER (PARTITION BY subscriber ORDER BY g) AS next_reason,
    lead(g, 2) OVER (PARTITION BY subscriber ORDER BY g) AS second_next_g
  FROM subscriptions
  WHERE kind IN ('granted', 'ended')
),
held AS (
  SELECT subscriber, explode(topics) AS topic, g AS from_g,
    coalesce(CASE WHEN next_reason = 'expired' THEN second_next_g END, next_g, 9223372036854775807) AS until_g
  FROM changes
  WHERE kind = 'granted'
),
known AS (
  SELECT subscriber, min(known_from_g) AS known_from_g FROM changes GROUP BY subscriber
),
processes AS (
  SELECT subscriber, nonce, max(g) AS last_granted_g FROM changes WHERE kind = 'granted' GROUP BY subscriber, nonce
),
fences AS (
  SELECT processes.subscriber, processes.nonce, min(changes.g) AS taken_over_g
  FROM processes JOIN changes ON changes.subscriber = processes.subscriber AND changes.nonce <> processes.nonce
    AND changes.kind = 'granted' AND changes.g > processes.last_granted_g
  GROUP BY processes.subscriber, processes.nonce
)
SELECT d.subscriber, d.generation, d.nonce, d.delivery_index, d.topic, d.n, d.g, fences.taken_over_g
FROM deliveries AS d
LEFT JOIN known ON known.subscriber = d.subscriber
LEFT JOIN held ON held.subscriber = d.subscriber AND held.topic = d.topic AND d.g > held.from_g AND d.g <= held.until_g
LEFT JOIN fences ON fences.subscriber = d.subscriber AND fences.nonce = d.nonce
WHERE (held.topic IS NULL AND d.n > 0
    AND d.g > coalesce(known.known_from_g, CASE WHEN (SELECT began_late FROM complete) THEN d.g ELSE 0 END)
    AND d.g <= (SELECT through_g FROM complete))
  OR d.g > fences.taken_over_g
