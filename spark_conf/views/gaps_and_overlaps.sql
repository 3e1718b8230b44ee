-- Is every offset in the lake exactly once? One row where neighbouring ranges of a partition leave offsets out or share some. Normally empty.
SELECT topic, topic_id, partition,
       CASE WHEN start_offset > reached + 1 THEN 'gap' ELSE 'overlap' END AS kind,
       least(start_offset, reached + 1) AS first_offset,
       CASE WHEN start_offset > reached + 1 THEN start_offset - 1 ELSE least(end_offset, reached) END AS last_offset,
       segment_id
FROM (
  SELECT *, max(end_offset) OVER (
    PARTITION BY topic_id, partition ORDER BY start_offset, end_offset, segment_id
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS reached
  FROM remote_segments
  WHERE state = 'COPY_SEGMENT_FINISHED'
) AS ordered
WHERE start_offset <> reached + 1
