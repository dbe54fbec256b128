package mqadmin;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs commands of mqadmin one after the other in one JVM: a line with tabs between its words is one. */
public final class Commands {
    private static final String END = "-- end --";

    private Commands() {
    }

    public static void main(String[] args) throws Exception {
        System.setErr(System.out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            System.out.println();
            System.out.println(END);
            System.out.flush();
        }
        System.exit(0);
    }
}
