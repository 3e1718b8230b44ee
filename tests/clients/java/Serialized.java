import com.google.geo.type.Viewport;
import com.google.protobuf.Message;
import com.google.rpc.ErrorInfo;
import com.google.rpc.QuotaFailure;
import com.google.type.LatLng;
import com.google.type.Money;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serializer;

/**
 * Produces what Apicurio's serializers make: records of each format to a topic of its own.
 * Words: brokers, registry, the topics of Avro, JSON Schema and Protobuf. The schemas of the first two are on the class
 * path, stop.avsc and stop.json.
 */
public class Serialized {
    private final Properties brokers = new Properties();
    private final Map<String, Object> registry = new HashMap<>();

    private Serialized(String servers, String url) {
        brokers.put("bootstrap.servers", servers);
        registry.put("apicurio.registry.url", url);
        registry.put("apicurio.registry.auto-register", "true");
        registry.put("apicurio.registry.artifact.schema.location", "stop.json");
    }

    public static void main(String[] words) throws Exception {
        Serialized made = new Serialized(words[0], words[1]);
        Schema schema = new Schema.Parser().parse(Serialized.class.getResourceAsStream("/stop.avsc"));
        made.send(new AvroKafkaSerializer<>(), words[2],
            new GenericRecordBuilder(schema).set("city", "Köln").set("n", 1).build());
        made.send(new JsonSchemaKafkaSerializer<>(), words[3], Map.of("city", "Köln", "n", 1));

        Money money = Money.newBuilder().setCurrencyCode("EUR").setUnits(12).build();
        made.send(new ProtobufKafkaSerializer<>(), words[4], money);
        // As Confluent's frame. Its validation knows of no messages within others.
        made.registry.put("apicurio.registry.serde.send-type-ref", false);
        made.registry.put("apicurio.registry.serde.send-indexes", true);
        made.registry.put("apicurio.registry.serde.validation-enabled", false);
        for (Message message : List.of(
                money,
                ErrorInfo.newBuilder().putMetadata("stand", "7").build(),
                QuotaFailure.Violation.newBuilder().setSubject("flights").build(),
                Viewport.newBuilder().setLow(LatLng.newBuilder().setLatitude(50.5)).build())) {
            made.send(new ProtobufKafkaSerializer<>(), words[4], message);
        }
    }

    private <T> void send(Serializer<T> serializer, String topic, T value) {
        serializer.configure(registry, false);
        try (KafkaProducer<byte[], T> producer =
                new KafkaProducer<>(brokers, new ByteArraySerializer(), serializer)) {
            producer.send(new ProducerRecord<>(topic, value));
        }
    }
}
