import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

/** Prints the fields of every request and response of a Kafka release, as JSON: one line per message and version. */
public class KafkaSchemas {
    public static void main(String[] args) throws ReflectiveOperationException {
        for (ApiMessageType api : ApiMessageType.values()) {
            print(api, "request", api.requestSchemas());
            print(api, "response", api.responseSchemas());
        }
    }

    private static void print(ApiMessageType api, String direction, Schema[] schemas)
        throws ReflectiveOperationException {
        for (int version = 0; version < schemas.length; version++) {
            if (schemas[version] != null) {
                System.out.printf("{\"key\": %d, \"name\": \"%s\", \"direction\": \"%s\", \"version\": %d, \"flexible\": %b, \"fields\": %s}%n",
                    api.apiKey(), api.name, direction, version, isFlexible(schemas[version]),
                    fields(schemas[version]));
            }
        }
    }

    private static boolean isFlexible(Schema schema) {
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                return true;
            }
        }
        return false;
    }

    private static String fields(Schema schema) throws ReflectiveOperationException {
        List<String> texts = new ArrayList<>();
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields) {
                for (Map.Entry<Integer, Field> tagged : tagged((TaggedFields) field.def.type).entrySet()) {
                    texts.add(field(tagged.getValue(), tagged.getKey()));
                }
            } else {
                texts.add(field(field.def, -1));
            }
        }
        return texts.toString();
    }

    @SuppressWarnings("unchecked") // the accessor came with 4.0
    private static Map<Integer, Field> tagged(TaggedFields type) throws ReflectiveOperationException {
        java.lang.reflect.Field fields = TaggedFields.class.getDeclaredField("fields");
        fields.setAccessible(true);
        return (Map<Integer, Field>) fields.get(type);
    }

    private static String field(Field field, int tag) throws ReflectiveOperationException {
        Type type = field.type;
        String array = "";
        boolean nullable = type.isNullable();
        if (type.isArray()) {
            array = "[]";
            type = type.arrayElementType().get();
        }
        String inner = type instanceof Schema ? ", \"fields\": " + fields((Schema) type) : "";
        String name = type instanceof Schema ? "struct" : type.toString().toLowerCase();
        return String.format("{\"name\": \"%s\", \"type\": \"%s%s\", \"nullable\": %b, \"tag\": %d%s}",
            field.name, array, name, nullable, tag, inner);
    }
}
