package forebay.lab;

/** What came back is not what was sent: nothing that was measured counts. */
public final class Wrong extends Exception {
    private static final long serialVersionUID = 1;

    public Wrong(String what) {
        super(what);
    }
}
