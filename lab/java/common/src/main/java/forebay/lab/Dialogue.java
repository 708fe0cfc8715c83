package forebay.lab;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * How the lab speaks to its programs: a line of {@link Options} on standard input is answered by one line of JSON on
 * standard output.
 *
 * <p>A program ends when there are no more lines: also if the lab was killed, for then nobody holds the other end. What
 * failed is answered with {@code error}, wrong data with {@code wrong}; both end the program.
 */
public final class Dialogue {
    private Dialogue() {}

    /** What is done for a line. */
    public interface Work {
        Answer answer(Options asked) throws Exception;
    }

    /** Says the greeting, then answers until there are no more lines; ends the program, whatever its threads do. */
    public static void hold(Greeting greeting) {
        // Libraries that print must not come between the answers.
        PrintStream answers = System.out;
        System.setOut(System.err);
        int code = 0;
        try {
            Talk talk = greeting.begin();
            answers.println(talk.greeting());
            converse(talk.work(), answers);
        } catch (Wrong wrong) {
            answers.println(new Answer().put("wrong", wrong.getMessage()));
            code = 3;
        } catch (Exception | LinkageError error) {
            error.printStackTrace();
            answers.println(new Answer().put("error", error.toString()));
            code = 1;
        }
        answers.flush();
        Runtime.getRuntime().halt(code);
    }

    /** Gets everything ready. */
    public interface Greeting {
        Talk begin() throws Exception;
    }

    /** The first answer, given before anything was asked, and what is done for each line. */
    public record Talk(Answer greeting, Work work) {}

    private static void converse(Work work, PrintStream answers) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = next(asked); line != null; line = next(asked)) {
            answers.println(work.answer(Options.of(line)));
            answers.flush();
        }
    }

    private static String next(BufferedReader asked) {
        try {
            return asked.readLine();
        } catch (IOException gone) {
            return null;
        }
    }
}
