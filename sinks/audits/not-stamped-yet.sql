-- title: Deliveries of which no stamp is known yet
-- proves: Nothing; it shows, by subscriber, the deliveries whose position lies beyond all that is known. Lineage reads
--   receipts and stamps side by side, so some may be there while it runs. Those that are still there after it has
--   caught up were never stamped: somebody else wrote them, and an hour later published.sql says so.
-- how: The g of the receipt, above the newest that a batch has.
-- judges: never
SELECT subscriber, count(*) AS deliveries, min(g) AS first_g, max(g) AS last_g
FROM deliveries
WHERE g > (SELECT newest_g FROM complete)
GROUP BY subscriber
ORDER BY subscriber
