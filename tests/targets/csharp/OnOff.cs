// OnOff SECONDS: one thread burns, five wait for a delay of 100 ms, again and again.
using System;
using System.Diagnostics;
using System.Threading;
using System.Threading.Tasks;

static class OnOff
{
    static Stopwatch clock = Stopwatch.StartNew();
    static double seconds;

    static void Burns()
    {
        double sum = 0;
        while (clock.Elapsed.TotalSeconds < seconds)
            for (int i = 1; i < 1000; i++) sum += Math.Sqrt(i);
        GC.KeepAlive(sum);
    }

    static void Waits()
    {
        while (clock.Elapsed.TotalSeconds < seconds) Task.Delay(100).Wait();
    }

    static int Main(string[] arguments)
    {
        seconds = double.Parse(arguments[0]);
        var threads = new Thread[6];
        threads[0] = new Thread(Burns);
        for (int i = 1; i < threads.Length; i++) threads[i] = new Thread(Waits);
        foreach (var thread in threads) thread.Start();
        Console.WriteLine("ready");
        foreach (var thread in threads) thread.Join();
        return 0;
    }
}
