// Answers requests on several threads, and how many: for comparing a server's speed with and without
// a profiler.
// usage: Serves seconds [interval]
//
// A request is parsed, allocates some kilobytes (small objects, strings, an array), looks into a table
// under a lock that all threads share and now and then is refused with an exception (one in 200). The
// last line of its kind, "progress REQUESTS SECONDS CPU", is what was done so far, when, and the
// process's CPU time then.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Text;
using System.Threading;

internal static class Serves
{
    private sealed class Refused : Exception { public Refused(string message) : base(message) { } }

    private sealed class Item { public string Name; public int Count; public Item Next; }

    private const int Threads = 4;
    private static readonly object door = new object();
    private static readonly Dictionary<string, int> stock = new Dictionary<string, int>();
    private static readonly long[] answered = new long[Threads * 16];
    private static volatile bool ended;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static Item Parse(string request)
    {
        Item first = null;
        foreach (string part in request.Split(','))
        {
            int at = part.IndexOf('=');
            first = new Item { Name = part.Substring(0, at), Count = int.Parse(part.Substring(at + 1)), Next = first };
        }
        return first;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Take(Item item)
    {
        lock (door)
        {
            stock.TryGetValue(item.Name, out int left);
            stock[item.Name] = left - item.Count;
            return left;
        }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void Refuse(int number) { throw new Refused("request " + (number % 8)); }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Answer(int number)
    {
        var request = "apple=" + (number % 7) + ",pear=2,plum=" + (number % 3) + ",fig=1";
        var text = new StringBuilder();
        for (Item item = Parse(request); item != null; item = item.Next)
            text.Append(item.Name).Append(':').Append(Take(item)).Append(';');
        if (number % 200 == 199) Refuse(number);
        var bytes = new byte[2048];
        return Encoding.UTF8.GetBytes(text.ToString(), 0, Math.Min(text.Length, 512), bytes, 0);
    }

    private static void Work(int thread)
    {
        for (int number = 0; !ended; number++)
        {
            try { Answer(number); }
            catch (Refused) { }
            answered[thread * 16]++;
        }
    }

    private static long Answered()
    {
        long sum = 0;
        for (int thread = 0; thread < Threads; thread++) sum += Volatile.Read(ref answered[thread * 16]);
        return sum;
    }

    private static string Seconds(double value) => value.ToString("F6", CultureInfo.InvariantCulture);

    private static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 0, 5), interval = Target.Number(arguments, 1, 1);
        var threads = new Thread[Threads];
        for (int i = 0; i < Threads; i++)
        {
            int own = i;
            threads[i] = new Thread(() => Work(own));
            threads[i].Start();
        }
        Target.Ready();
        double end = Target.Now + seconds;
        while (Target.Now < end)
        {
            Thread.Sleep((int)(interval * 1000));
            double cpu = Process.GetCurrentProcess().TotalProcessorTime.TotalSeconds;
            Target.Say("progress " + Answered().ToString() + " " + Seconds(Target.Now) + " " + Seconds(cpu));
        }
        ended = true;
        foreach (var thread in threads) thread.Join();
        return 0;
    }
}
