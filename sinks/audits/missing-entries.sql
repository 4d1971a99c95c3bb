-- title: No entry is missing from a timestamp
-- proves: Timestamps carry what subscribers need to wait for: a keyframe has an entry for every member of the topic's
--   sequencing group; any event has one for each member that advanced since the topic's previous event, and for each
--   topic that joined or left the group since.
-- how: Members come from sequencing_groups, at the event's position; whether one advanced, from counting events between
--   the two positions. Entries of other topics may stand there too; entries.sql says whether they are true. The
--   work grows with events times the size of their groups.
-- limits: The first known event of a topic is not judged where lineage began after batch 1.
-- subject: events
WITH stamped AS (
  SELECT topic, n, g, keyframe, entries, coalesce(lag(g) OVER (PARTITION BY topic ORDER BY g), 0) AS previous_g
  FROM events
),
grouped AS (
  SELECT stamped.topic, n, g, keyframe, previous_g, member, array_contains(map_keys(entries), member) AS is_there,
    valid_from_g < g AND coalesce(valid_to_g >= g, true) AS is_member,
    valid_from_g BETWEEN previous_g AND g OR valid_to_g BETWEEN previous_g AND g AS changed
  FROM stamped JOIN sequencing_groups AS groups ON groups.topic = stamped.topic
    AND groups.valid_from_g < g AND coalesce(groups.valid_to_g > previous_g, true)
  WHERE member <> stamped.topic AND (previous_g > 0 OR NOT (SELECT began_late FROM complete))
    AND g <= (SELECT through_g FROM complete)
),
line AS (
  SELECT topic AS counted, g AS at, 1 AS is_event,
    CAST(NULL AS STRUCT<topic: STRING, n: BIGINT, g: BIGINT, keyframe: BOOLEAN, changed: BOOLEAN>) AS event
  FROM events
  UNION ALL
  SELECT member, at, 0, struct(topic, n, g, keyframe, changed)
  FROM grouped LATERAL VIEW explode(array(previous_g, g)) sides AS at
  WHERE NOT is_there AND (is_member OR changed)
),
counts AS (
  SELECT *, sum(is_event) OVER (PARTITION BY counted ORDER BY at, is_event ROWS UNBOUNDED PRECEDING) AS passed
  FROM line
)
SELECT event.topic, event.n, event.g, event.keyframe, counted AS missing_entry,
  CASE WHEN event.keyframe THEN 'a keyframe has the whole group' WHEN bool_or(event.changed) THEN 'joined or left'
    ELSE 'advanced' END AS reason
FROM counts
WHERE is_event = 0
GROUP BY event.topic, event.n, event.g, event.keyframe, event.changed, counted
HAVING event.keyframe OR event.changed OR min(passed) < max(passed)
ORDER BY g, missing_entry
