import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.TreeMap;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/** Prints what a running broker has counted, as JSON: requests, body bytes and throttle times by API, bytes by topic. */
public class Totals {
    private static MBeanServerConnection broker;

    public static void main(String[] args) throws Exception {
        String url = "service:jmx:rmi:///jndi/rmi://127.0.0.1:" + args[0] + "/jmxrmi";
        broker = JMXConnectorFactory.connect(new JMXServiceURL(url)).getMBeanServerConnection();
        String requests = "kafka.network:type=RequestMetrics,";
        System.out.printf("{\"requests\": %s,%n \"body_bytes\": %s,%n \"throttle_ms\": %s,%n \"bytes_in\": %s,%n \"bytes_out\": %s}%n",
            sums(requests + "name=RequestsPerSec,*", "request", false),
            sums(requests + "name=RequestBytes,*", "request", true),
            sums(requests + "name=ThrottleTimeMs,*", "request", true),
            sums("kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,*", "topic", false),
            sums("kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,*", "topic", false));
    }

    /** Return the counts, or the sums of a histogram, by the value of a key. */
    private static String sums(String pattern, String key, boolean histogram) throws Exception {
        Map<String, Long> found = new TreeMap<>();
        for (ObjectName name : broker.queryNames(new ObjectName(pattern), null)) {
            String whose = name.getKeyProperty(key);
            long count = ((Number) broker.getAttribute(name, "Count")).longValue();
            double each = histogram ? ((Number) broker.getAttribute(name, "Mean")).doubleValue() : 1.0;
            if (whose != null && count > 0) {
                found.merge("\"" + whose + "\"", Math.round(count * each), Long::sum);
            }
        }
        return found.toString().replace("=", ": ");
    }
}
