-- Which records could share groups not deliver, and why? One row per dead letter that has been copied to its table.
SELECT ${dead_group} AS group_id, ${dead_topic} AS topic, TRY_CAST(${dead_partition} AS INT) AS partition,
       TRY_CAST(${dead_offset} AS BIGINT) AS offset, TRY_CAST(${dead_delivery_count} AS INT) AS delivery_count,
       ${dead_message} AS message, letters.timestamp AS written_at, letters.key, letters.value, letters.headers,
       letters.dead_letter_topic, letters.partition AS dead_letter_partition, letters.offset AS dead_letter_offset
FROM ${dead_letters} AS letters
WHERE ${dead_topic} IS NOT NULL
