// Writes what java.util.regex finds with odd patterns: patterns.json. For each pattern and subject: whether all of it
// matches, and where the first match and its groups are (an empty group as one that took no part). With JDK 17:
//     java tests/vectors/principals/Patterns.java tests/vectors/principals

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

public class Patterns {
    static final Random random = new Random(20261126);
    static final int COUNT = 2500;

    static final String[] PIECES = {
        "a", "a", "b", "A", "CN=", "=", ",", ".", ".*", ".*", ".+?", "^", "$", "\\A", "\\z", "|", "(", "(", "(?:", "(?=",
        "(?!", "(?>", "(?<n>", ")", ")", ")", ")*", ")+", "(a)?", "(a|b)*", "(a*)*", "(|a)", "()", "*", "+", "?", "{2}",
        "{1,}", "{0,2}?", "++", "[a-c]", "[^,]", "[^,]*", "[-a]", "[a-]", "[^-b]", "[a^]", "[\\w.]", "[\\d-]", "[&x]",
        "[^\\]]", "[!-~]", "[\\x41-\\x43]", "\\w", "\\d", "\\s", "\\W", "\\D", "\\S", "\\1", "\\.", "\\$", "\\x41",
        "\\u0041", "\\t", "\\n", "\\-", "]", "}", "{", "\u00e9", "\u00df", "\u212a", "\n", "\r", "\u2028", "\ud83d\ude00",
        "[\\[]", "[.]", "[^a-z\u00e9]", "&", "#", " ", "(?i)", "(?i:", "(?s)", "[[a]b]", "[a&&b]", "\\b", "\\Z", "\\R",
        "\\h", "\\Qa\\E", "\\p{Alpha}", "(?<=a)", "(?<!a)", "\\G", "\\X", "\\k<n>", "[^\\w]", "[]a]", "[^]]", "[a--b]",
    };
    static final String[] SUBJECTS = {
        "", "a", "ab", "aab", "CN=alice", "CN=Alice,OU=x", "a\n", "a\r\n", "\n", "b\u2028", "a\u0085", "\u00e9", "K",
        "\u212a", "\u017f", "CN=a\nb", "1", "\u0663", "a1_", "x\ud83d\ude00a", "-", "^", "\u00df", "\u000b",
    };

    public static void main(String[] arguments) throws Exception {
        Set<String> patterns = new LinkedHashSet<>();
        while (patterns.size() < COUNT) {
            StringBuilder pattern = new StringBuilder(random.nextInt(6) == 0 ? "(?i)" : "");
            for (int count = 1 + random.nextInt(6); count > 0; count--) {
                pattern.append(PIECES[random.nextInt(PIECES.length)]);
            }
            patterns.add(pattern.toString());
        }
        List<String> rows = new ArrayList<>();
        for (String pattern : patterns) {
            rows.add("[" + quoted(pattern) + ", " + quoted(answer(pattern)) + "]");
        }
        List<String> subjects = new ArrayList<>();
        for (String subject : SUBJECTS) {
            subjects.add(quoted(subject));
        }
        Files.writeString(Path.of(arguments[0]).resolve("patterns.json"), "{\"subjects\": [" + String.join(", ", subjects)
            + "],\n\"patterns\": [\n" + String.join(",\n", rows) + "\n]}\n");
    }

    static String answer(String text) {
        Pattern pattern;
        try {
            pattern = Pattern.compile(text);
        } catch (PatternSyntaxException refused) {
            return "refused";
        }
        List<String> answers = new ArrayList<>();
        for (String subject : SUBJECTS) {
            Matcher matcher = pattern.matcher(subject);
            String all = matcher.matches() ? "all " : "";
            matcher.reset();
            if (!matcher.find()) {
                answers.add("");
                continue;
            }
            StringBuilder found = new StringBuilder(all).append(span(subject, matcher.start(), matcher.end()));
            for (int group = 1; group <= matcher.groupCount(); group++) {
                boolean empty = matcher.start(group) == matcher.end(group);
                found.append(' ').append(empty ? "-" : span(subject, matcher.start(group), matcher.end(group)));
            }
            answers.add(found.toString());
        }
        return String.join("/", answers);
    }

    static String span(String subject, int start, int end) {
        return subject.codePointCount(0, start) + ":" + subject.codePointCount(0, end);
    }

    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                quoted.append('\\').append(letter);
            } else if (letter < ' ' || letter > '~') {
                quoted.append(String.format("\\u%04x", (int) letter));
            } else {
                quoted.append(letter);
            }
        }
        return quoted.append('"').toString();
    }
}
