import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/** Runs commands of Kafka in one process: a line "class TAB argument TAB ..." each, from a file. */
public class Commands {
    static final class Exited extends RuntimeException {
        final int code;

        Exited(int code) {
            this.code = code;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out, err = System.err;
        Integer[] code = new Integer[1];
        Exit.setExitProcedure((status, message) -> {
            if (code[0] == null) { // what follows is a command that catches what is thrown here
                code[0] = status;
            }
            throw new Exited(status);
        });
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] words = line.split("\t", -1);
            String[] argv = new String[words.length - 1];
            System.arraycopy(words, 1, argv, 0, argv.length);
            ByteArrayOutputStream printed = new ByteArrayOutputStream(), errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true));
            System.setErr(new PrintStream(errors, true));
            code[0] = null;
            try {
                Method main = Class.forName(words[0]).getMethod("main", String[].class);
                main.invoke(null, (Object) argv);
            } catch (java.lang.reflect.InvocationTargetException error) {
                if (!(error.getCause() instanceof Exited)) {
                    error.getCause().printStackTrace();
                }
            }
            System.setOut(out);
            System.setErr(err);
            out.println((code[0] == null ? 0 : code[0]) + " " + text(printed) + " " + text(errors));
        }
    }

    static String text(ByteArrayOutputStream bytes) {
        return "-" + Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
