// Writes what the JDK and Apache Kafka make of certificates' subjects: names.json (X500Principal.getName of odd names in
// DER) and rules.json (SslPrincipalMapper of odd rules and names). With the jars of scripts/kafka-jars.sh:
//     java -cp "$(scripts/kafka-jars.sh)/*" tests/vectors/principals/Principals.java tests/vectors/principals

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public class Principals {
    static final Random random = new Random(20260101);

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        write(folder.resolve("names.json"), names());
        Files.writeString(folder.resolve("rules.json"), "{\"subjects\": " + listed(SUBJECTS) + ",\n\"rules\": [\n"
            + String.join(",\n", rules()) + "\n]}\n");
    }

    // --- names

    static final String[] IDENTIFIERS = {
        "2.5.4.3", "2.5.4.6", "2.5.4.7", "2.5.4.8", "2.5.4.9", "2.5.4.10", "2.5.4.11", "0.9.2342.19200300.100.1.1",
        "0.9.2342.19200300.100.1.25", "2.5.4.3", "2.5.4.10", "2.5.4.11", "1.2.840.113549.1.9.1", "2.5.4.5", "2.5.4.4",
        "2.5.4.42", "2.5.4.12", "2.5.4.46", "2.5.4.43", "2.5.4.44", "2.5.4.13", "2.5.4.45", "2.5.4.97", "1.2.3", "0.39",
        "2.999.4294967296", "2.39", "1.3.6.1.4.1.42.2.11.2.1", "2.5.4.17",
    };
    static final int[] TAGS = {
        0x0C, 0x0C, 0x0C, 0x13, 0x13, 0x13, 0x14, 0x16, 0x1B, 0x1E, 0x1C, 0x12, 0x1A, 0x04, 0x02, 0x01, 0x05, 0x17, 0x18,
        0x30, 0x03, 0x0A, 0x19,
    };
    static final String[] PIECES = {
        "a", "Alice", "b c", " ", "  ", "\r", "\n", "\t", ",", "+", "=", "<", ">", "#", ";", "\"", "\\", "/", "'", "*", "@",
        "\0", "\u007f", "\u00e9", "\u00df", "\u20ac", "\u0130", "\ud83d\ude00", "\u00a0", "\u2028", "\ufeff", "_", "-", ".",
        "CN=x", "1", "%", "\\2c", "#0401",
    };

    static List<String> names() {
        List<String> rows = new ArrayList<>();
        Set<String> seen = new LinkedHashSet<>();
        addName(rows, seen, new byte[0]);
        for (int tag : TAGS)
            for (String text : new String[] {"", "x", " x ", "\u00e9"})
                addName(rows, seen, relative(attribute("2.5.4.3", tag, encoded(tag, text))));
        for (String piece : PIECES)
            for (String text : new String[] {piece, piece + "x", "x" + piece, "x" + piece + "y", piece + " " + piece})
                addName(rows, seen, relative(attribute("2.5.4.3", 0x0C, encoded(0x0C, text))));
        for (String identifier : IDENTIFIERS)
            addName(rows, seen, relative(attribute(identifier, 0x13, encoded(0x13, "x"))));
        while (rows.size() < 700) {
            ByteArrayOutputStream name = new ByteArrayOutputStream();
            for (int left = 1 + random.nextInt(4); left > 0; left--) {
                ByteArrayOutputStream attributes = new ByteArrayOutputStream();
                for (int more = random.nextInt(5) == 0 ? 2 + random.nextInt(2) : 1; more > 0; more--) {
                    int tag = TAGS[random.nextInt(random.nextBoolean() ? 6 : TAGS.length)];
                    byte[] value = random.nextInt(12) == 0 ? noise() : encoded(tag, text());
                    attributes.writeBytes(attribute(pick(IDENTIFIERS), tag, value));
                }
                name.writeBytes(relative(attributes.toByteArray()));
            }
            addName(rows, seen, name.toByteArray());
        }
        return rows;
    }

    static void addName(List<String> rows, Set<String> seen, byte[] content) {
        byte[] name = element(0x30, content);
        String hex = HexFormat.of().formatHex(name);
        if (!seen.add(hex))
            return;
        String text;
        try {
            text = quoted(new X500Principal(name).getName());
        } catch (IllegalArgumentException error) {
            text = "null";
        }
        rows.add("[\"" + hex + "\", " + text + "]");
    }

    static byte[] noise() {
        byte[] bytes = new byte[random.nextInt(6)];
        random.nextBytes(bytes);
        return bytes;
    }

    static String text() {
        StringBuilder text = new StringBuilder();
        for (int left = random.nextInt(5); left > 0; left--)
            text.append(pick(PIECES));
        return text.toString();
    }

    static byte[] encoded(int tag, String text) {
        if (tag == 0x1E)
            return text.getBytes(StandardCharsets.UTF_16BE);
        if (tag == 0x14)
            return text.getBytes(StandardCharsets.ISO_8859_1);
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] relative(byte[] attributes) {
        return element(0x31, attributes);
    }

    static byte[] attribute(String identifier, int tag, byte[] value) {
        ByteArrayOutputStream pair = new ByteArrayOutputStream();
        pair.writeBytes(element(0x06, identifier(identifier)));
        pair.writeBytes(element(tag, value));
        return element(0x30, pair.toByteArray());
    }

    static byte[] identifier(String dotted) {
        String[] parts = dotted.split("\\.");
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        base128(bytes, Long.parseLong(parts[0]) * 40 + Long.parseLong(parts[1]));
        for (int at = 2; at < parts.length; at++)
            base128(bytes, Long.parseLong(parts[at]));
        return bytes.toByteArray();
    }

    static void base128(ByteArrayOutputStream bytes, long number) {
        int shift = 0;
        while (number >>> shift + 7 != 0)
            shift += 7;
        for (; shift > 0; shift -= 7)
            bytes.write((int) (number >>> shift) & 0x7F | 0x80);
        bytes.write((int) number & 0x7F);
    }

    static byte[] element(int tag, byte[] content) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        bytes.write(tag);
        if (content.length >= 0x100) {
            bytes.write(0x82);
            bytes.write(content.length >> 8);
        } else if (content.length >= 0x80) {
            bytes.write(0x81);
        }
        bytes.write(content.length);
        bytes.writeBytes(content);
        return bytes.toByteArray();
    }

    // --- rules

    static final String[] SUBJECTS = {
        "", "CN=alice", "CN=Alice,OU=Sales,O=Example,L=Ulm,C=DE", "CN=kafka1.example.com,OU=Brokers", "CN=a\\,b,O=x\\\\y",
        "OU=x,CN=Duke,OU=JavaSoft,O=Sun Microsystems,C=US", "CN=\u00c9t\u00e9 \u0130\u00df,O=\u03a3\u03c3\u03a3", "CN=a b+UID=7,DC=x,DC=org",
        "CN=$1\\+{x},O=a/b", "cn=lower,ou=case", "1.2.840.113549.1.9.1=#1603614062,CN=m", "CN=x\ny,O=z",
    };
    static final String[] RULES = {
        "DEFAULT", "", " ", ",", ", ,", "DEFAULT,", "default", "RULE:", "RULE:/", "RULE://", "RULE:///", "RULE:a/b", "RULE:a/b/", "RULE:a/b/c",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),C=(.*?)$/$1@$2/L", "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?)$/$1/U,RULE:^CN=(.*)$/$1/L,DEFAULT", "RULE:CN=(\\w+),OU=(\\w+).*/$2\\/$1/", "RULE:.*/x/", "RULE:(.*)/$1/", "RULE:(.*)/$1/L", "RULE:(.*)/$1/U",
        "RULE:(.*)/$0/", "RULE:(.*)/$2/", "RULE:(.*)/$12/", "RULE:(.*)/$1$2$3/", "RULE:.*/$1/", "RULE:(.*)/\\$1/", "RULE:(.*)/\\\\$1/", "RULE:(.*)/$/", "RULE:(.*)/$x/", "RULE:(.*)/a$/U",
        "RULE:(?<who>.*)/${who}/", "RULE:(?<who>.*)/${other}/", "RULE:CN=(?<who>[^,]*).*/<${who}>/", "RULE:(.*?)/<$1>/", "RULE:CN=(.*?)(,.*)?/$1$2/", "RULE:CN=(.*?)(,.*)?/[$2]/", "RULE:(?i)cn=([^,]+).*/$1/L",
        "RULE:CN=([^,]+)(?:,.*)?/$1/X", "RULE:CN=([^,]+).*/$1/LU", "RULE:CN=([^,]+).*/$1/L x", "RULE:CN=([^,]+).*/$1/L , DEFAULT", "RULE:CN=([^,]+).*/$1/ L", " RULE:CN=(.*)/$1/ , DEFAULT ", "RULE:CN=(.*)/$1/ DEFAULT",
        "RULE:CN=(.*),(.*),(.*)/$1-$2-$3/,RULE:CN=(.*)/$1/", "RULE:CN=(.*/$1/", "RULE:[/$1/", "RULE:*/x/", "RULE:CN=\\p{Alpha}+.*/alpha/", "RULE:CN=\\p{Lu}\\p{L}+.*/letters/", "RULE:CN=\\p{Upper}.*/upper/", "RULE:CN=[a-z&&[^b]]+.*/some/",
        "RULE:\\QCN=\\E(.*)/$1/", "RULE:CN=(\\w+).*/$1/", "RULE:CN=(\\W+).*/$1/", "RULE:CN=(.+?)(?=,|$).*/$1/", "RULE:CN=([^,]++).*/$1/", "RULE:CN=(?>[^,]+)(.*)/$1/", "RULE:(?s)CN=(.*)/$1/", "RULE:CN=(.*)\\z/$1/", "RULE:CN=(.*)\\Z/$1/", "RULE:\\ACN=(.*)/$1/",
        "RULE:CN=(a|b|A)(.*)/$2$1/", "RULE:(CN)=(.*)/\\x$2\\/$1/", "RULE:CN=(.*)/\\/", "RULE:CN=(.*)/x\\\\/", "RULE:CN=(.*)\\/b/$1/", "RULE:(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)(.*)/$11-$10-$1-$110-$99/", "RULE:(.*)/$01/", "RULE:(.*)/$99999999999/",
        "RULE:(?x) CN= (.*) # name/$1/", "RULE:(?:CN=)(?i:ALICE)(.*)/found$1/", "RULE:CN=(.*)\\R(.*)/$1-$2/", "RULE:CN=(.*)\\s(.*)/$1_$2/", "RULE:CN=\\x41(.*)/$1/", "RULE:CN=\\u0041(.*)/$1/", "RULE:CN=\\101(.*)/$1/", "RULE:CN=\\0101(.*)/$1/",
        "RULE:CN=([\\w&&\\D]+).*/$1/", "RULE:CN=([\\[\\]a-zA-Z]+).*/$1/", "RULE:CN=([a-zA[-Z]]+).*/$1/", "RULE:CN=(.*),O=\\1/$1/", "RULE:CN=(?<a1>.*)\\k<a1>/$1/", "RULE:CN=(\\h*\\S+).*/$1/", "RULE:CN=.{5}(.*)/$1/", "RULE:CN=.{3,4}?(.*)/$1/", "RULE:CN=(.{,3}).*/$1/",
        "RULE:(?<=)CN=(.*)/$1/", "RULE:.*(?<=OU=)([^,]*).*/$1/", "RULE:.*(?<![A-Z]U=)x(.*)/$1/", "RULE:CN=([^\\,]*).*/$1/", "RULE:^(?!CN=alice)(.*)$/$1/", "RULE:CN=(.*)$/$1/,DEFAULT", "DEFAULT,RULE:CN=(.*)$/$1/", "RULE:\\bCN=(.*)/$1/",
    };
    static final String[] PARTS = {
        "RULE:", "RULE", "DEFAULT", "/", "/", "/", ",", ",", " ", "\\", "\\/", "\\,", "$1", "$2", "(.*)", "CN=", "^", "$", "L", "U", ".*", "(", ")", "[^,]*", "x", "\t",
    };
    static final String[] PATTERNS = {
        "^", "$", "CN=", "OU=", "(.*)", "(.*?)", "([^,]*)", ".*", ",", "(\\w+)", "(?:,.*)?", "[A-Z]+", "(a|A)?", "\\.", "=", "(x)*", ".+?", "(?i)", "\\d*",
    };
    static final String[] REPLACEMENTS = {"$1", "$2", "$3", "$10", "$21", "\\$", "\\\\", "x", "@", "-", "$0", "\\/", " ", "User", "$1$1"};

    static List<String> rules() {
        Set<String> texts = new LinkedHashSet<>(List.of(RULES));
        while (texts.size() < RULES.length + 250)
            texts.add("RULE:" + joined(PATTERNS, 6) + "/" + joined(REPLACEMENTS, 4) + "/" + pick(new String[] {"", "L", "U"})
                + (random.nextBoolean() ? ",DEFAULT" : ""));
        while (texts.size() < RULES.length + 600)
            texts.add(joined(PARTS, 10));
        List<String> rows = new ArrayList<>();
        for (String text : texts)
            rows.add("[" + quoted(text) + ", " + answers(text) + "]");
        return rows;
    }

    // What each of SUBJECTS becomes; null: no rule is for it; {"fails": ...}: an exception; that alone: the rules are none.
    static String answers(String text) {
        SslPrincipalMapper mapper;
        try {
            mapper = new SslPrincipalMapper(text);
        } catch (RuntimeException error) {
            return failure(error);
        }
        List<String> answers = new ArrayList<>();
        for (String subject : SUBJECTS) {
            String name;
            try {
                name = quoted(mapper.getName(subject));
            } catch (RuntimeException error) {
                name = failure(error);
            } catch (Exception noRule) {
                name = "null";
            }
            answers.add(name);
        }
        return "[" + String.join(", ", answers) + "]";
    }

    static String failure(RuntimeException error) {
        return "{\"fails\": \"" + error.getClass().getSimpleName() + "\"}";
    }

    // --- both

    static String joined(String[] pieces, int most) {
        StringBuilder text = new StringBuilder();
        for (int left = 1 + random.nextInt(most); left > 0; left--)
            text.append(pick(pieces));
        return text.toString();
    }

    static String pick(String[] pieces) {
        return pieces[random.nextInt(pieces.length)];
    }

    static String listed(String[] texts) {
        List<String> quoted = new ArrayList<>();
        for (String text : texts)
            quoted.add(quoted(text));
        return "[" + String.join(", ", quoted) + "]";
    }

    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray())
            if (letter < ' ' || letter > '~')
                quoted.append(String.format("\\u%04x", (int) letter));
            else
                quoted.append(letter == '"' || letter == '\\' ? "\\" : "").append(letter);
        return quoted.append('"').toString();
    }

    static void write(Path path, List<String> rows) throws Exception {
        Files.writeString(path, "[\n" + String.join(",\n", rows) + "\n]\n");
    }
}
