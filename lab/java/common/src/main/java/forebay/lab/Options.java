package forebay.lab;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What a program was told, as words {@code key=value}. Values hold no blanks. */
public final class Options {
    private final Map<String, String> values = new HashMap<>();

    /** Takes each word apart at its first equals sign; a word without one is refused. */
    public Options(List<String> words) {
        for (String word : words) {
            int at = word.indexOf('=');
            if (at <= 0) {
                throw new IllegalArgumentException("not key=value: " + word);
            }
            values.put(word.substring(0, at), word.substring(at + 1));
        }
    }

    /** The words of a line. */
    public static Options of(String line) {
        return new Options(Arrays.stream(line.trim().split("\\s+")).filter(word -> !word.isEmpty()).toList());
    }

    /** Whether it was said. */
    public boolean has(String key) {
        return values.containsKey(key);
    }

    /** A value that must be there. */
    public String text(String key) {
        String value = values.get(key);
        if (value == null) {
            throw new IllegalArgumentException(key + "= is missing");
        }
        return value;
    }

    /** A value, or what stands for it. */
    public String text(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    /** A whole number that must be there. */
    public long number(String key) {
        return Long.parseLong(text(key));
    }

    /** A whole number that must be there and is small. */
    public int small(String key) {
        return Integer.parseInt(text(key));
    }

    /** A number that must be there. */
    public double real(String key) {
        return Double.parseDouble(text(key));
    }
}
