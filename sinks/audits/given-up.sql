-- title: What subscribers gave up
-- proves: Nothing; it shows, by topic, the events that a subscriber was owed and did not receive, at the end of a stretch
--   after which a new process took over or the holder ended its subscription.
-- how: What was owed (owed.sql), not received, and later than all that was received of the stretch. A subscriber's last
--   stretch is left out: what is owed there may still come.
-- judges: never
SELECT subscriber, topic, count(*) AS events, min(g) AS first_g, max(g) AS last_g
FROM owed
WHERE NOT was_received AND g > last_received_g AND stretch < last_stretch
GROUP BY subscriber, stretch, topic
ORDER BY subscriber, first_g
