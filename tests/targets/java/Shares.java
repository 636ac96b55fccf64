import java.util.Arrays;

/** The 50/30/20 shares in Java. usage: java Shares [seconds] */
public final class Shares {
    // Drawn from: a fixed order of turns may be in step with a sampler.
    private static final int[] ORDER = {0, 0, 0, 0, 0, 1, 1, 1, 2, 2};
    private static long random = 42;
    private static long sink;

    static long burnFifty(long units) {
        long x = units | 1;
        for (long i = 0; i < units * 4000; i++) x = x * 6364136223846793005L + 1442695040888963407L;
        return x;
    }

    static long burnThirty(long units) {
        long x = units | 3;
        for (long i = 0; i < units * 4000; i++) x = x * 6364136223846793005L + 1442695040888963407L;
        return x;
    }

    static long burnTwenty(long units) {
        long x = units | 5;
        for (long i = 0; i < units * 4000; i++) x = x * 6364136223846793005L + 1442695040888963407L;
        return x;
    }

    static int compareAndBurn(Integer left, Integer right) {
        random ^= random << 13;
        random ^= random >>> 7;
        random ^= random << 17;
        switch (ORDER[(int) Long.remainderUnsigned(random, 10)]) {
            case 0: sink += burnFifty(20); break;
            case 1: sink += burnThirty(20); break;
            default: sink += burnTwenty(20); break;
        }
        return Integer.compare(left, right);
    }

    static long descend(int depth) {
        if (depth == 0) {
            Integer[] numbers = new Integer[64];
            for (int i = 0; i < 64; i++) numbers[i] = (i * 37) % 64;
            Arrays.sort(numbers, Shares::compareAndBurn);
            return numbers[0];
        }
        return descend(depth - 1) + 1;
    }

    public static void main(String[] arguments) {
        double seconds = arguments.length > 0 ? Double.parseDouble(arguments[0]) : 60;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) sink += descend(7);
        System.out.println("done " + (sink & 1));
    }
}
