package forebay.lab;

import java.util.LinkedHashMap;
import java.util.Map;

/** One line of JSON: numbers and words by name, in the order in which they were put. */
public final class Answer {
    private final Map<String, String> fields = new LinkedHashMap<>();

    /** A number; one that is none (nothing was measured) becomes null. */
    public Answer put(String key, double value) {
        fields.put(key, Double.isFinite(value) ? Double.toString(value) : "null");
        return this;
    }

    /** A count. */
    public Answer put(String key, long value) {
        fields.put(key, Long.toString(value));
        return this;
    }

    /** Words. */
    public Answer put(String key, String value) {
        fields.put(key, quoted(value));
        return this;
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                out.append('\\').append(one);
            } else if (one < ' ') {
                out.append(String.format("\\u%04x", (int) one));
            } else {
                out.append(one);
            }
        }
        return out.append('"').toString();
    }

    @Override
    public String toString() {
        StringBuilder out = new StringBuilder("{");
        fields.forEach((key, value) -> {
            out.append(out.length() > 1 ? ", " : "");
            out.append(quoted(key)).append(": ").append(value);
        });
        return out.append('}').toString();
    }
}
