// Writes what Apache Kafka's broker knows of its settings: settings.json, a row for each of KafkaConfig.configDef() with
// name, type, default (null: none), what is valid, and whether it can change while the broker runs. With the jars of
// scripts/kafka-jars.sh:
//     java -cp "$(scripts/kafka-jars.sh)/*" tests/vectors/settings/Settings.java tests/vectors/settings

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.DynamicBrokerConfig;

public class Settings {
    public static void main(String[] arguments) throws Exception {
        ConfigDef definition = KafkaConfig.configDef();
        List<String> rows = new ArrayList<>();
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            Object standard = key.hasDefault() && key.defaultValue != null ? ConfigDef.convertToString(key.defaultValue, key.type) : null;
            boolean dynamic = DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS.contains(key.name);
            rows.add("[" + String.join(", ", quoted(key.name), quoted(key.type.toString()), quoted(standard),
                quoted(key.validator == null ? null : key.validator.toString().replaceAll("\\$\\$?Lambda.*|@[0-9a-f]+", "")),
                String.valueOf(dynamic), String.valueOf(key.internalConfig)) + "]");
        }
        Files.writeString(Path.of(arguments[0], "settings.json"), "[\n" + String.join(",\n", rows) + "\n]\n");
    }

    static String quoted(Object value) {
        if (value == null)
            return "null";
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : value.toString().toCharArray())
            if (letter < ' ' || letter > '~')
                quoted.append(String.format("\\u%04x", (int) letter));
            else
                quoted.append(letter == '"' || letter == '\\' ? "\\" : "").append(letter);
        return quoted.append('"').toString();
    }
}
