// What the C# target programs share: arguments, clocks, the last line that prints what CPU time was
// used, the kernel's thread id.
//
// TRIMMED is defined for .NET 10, whose framework at hand lacks what its own program did not use.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Runtime.InteropServices;

public static class Target
{
    private struct Timespec
    {
        public long Seconds;
        public long Nanoseconds;
    }

    private const int Monotonic = 1;
    private const int ProcessCpuTime = 2;
    private const int ThreadCpuTime = 3;

    [DllImport("libc")]
    private static extern unsafe int clock_gettime(int clock, Timespec* time);

    [DllImport("libc")]
    private static extern int gettid();

    [DllImport("libc")]
    private static extern int getpid();

    // The clock of STRATA_TARGET_CLOCK: with it, a target does the same work however busy the
    // machine is.
    private static readonly int clockOfArguments =
        Environment.GetEnvironmentVariable("STRATA_TARGET_CLOCK") == null ? Monotonic : ProcessCpuTime;

    public static int ThreadId => gettid();

    public static double Now => Clock(clockOfArguments);

    public static double ThreadCpu => Clock(ThreadCpuTime);

    private static unsafe double Clock(int clock)
    {
        Timespec time;
        clock_gettime(clock, &time);
        return time.Seconds + time.Nanoseconds / 1e9;
    }

    public static double Number(string[] arguments, int index, double otherwise)
    {
        return arguments.Length > index
            ? double.Parse(arguments[index], CultureInfo.InvariantCulture)
            : otherwise;
    }

    public static void Say(string line)
    {
        Console.Out.WriteLine(line);
        Console.Out.Flush();
    }

    public static void Save(string file, IEnumerable<string> lines)
    {
        using (var writer = new StreamWriter(new FileStream(file, FileMode.Create, FileAccess.Write)))
        {
            foreach (string line in lines) writer.Write(line + "\n");
        }
    }

    // Everything is set up; what is measured begins.
    public static void Ready()
    {
        Say("ready");
    }

    public static void ReportCpu(string name)
    {
        var seconds = Clock(ProcessCpuTime).ToString("F6", CultureInfo.InvariantCulture);
        Say("cpu name=" + name + " pid=" + getpid() + " seconds=" + seconds);
    }
}
