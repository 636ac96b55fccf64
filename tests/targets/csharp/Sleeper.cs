// A service with nothing to do: threads that sleep, and wake up now and then.
// usage: Sleeper threads seconds [milliseconds-between-wake-ups]
using System.Threading;

internal static class Sleeper
{
    private static int interval;
    private static long wakeUps;

    private static void Sleep()
    {
        while (true)
        {
            Thread.Sleep(interval);
            Interlocked.Increment(ref wakeUps);
        }
    }

    private static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 1, 5);
        interval = (int)Target.Number(arguments, 2, 1000);
        for (int i = 0; i < (int)Target.Number(arguments, 0, 4); i++)
        {
            new Thread(Sleep, 1 << 18) { IsBackground = true, Name = "idle " + i.ToString() }.Start();
        }
        Target.Ready();
        Thread.Sleep((int)(seconds * 1000));
        Target.Say("woke-up " + wakeUps.ToString());
        Target.ReportCpu("Sleeper");
        return 0;
    }
}
