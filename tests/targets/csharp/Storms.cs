// Everything that strata reports of a runtime, all at once and without a pause.
// usage: Storms SECONDS Plugin.dll
//
// Two threads throw, three contend for a lock, two wait for each other by handles, one allocates in bursts,
// one collects garbage, and one loads code and unloads it. Each checks its own results; what is wrong
// is counted and printed, like every exception that was not thrown on purpose. At the end Main returns
// while they all go on, so the process exits in the middle of their events.
using System;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
using System.Threading;

internal static class Storms
{
    private sealed class Wanted : Exception
    {
        public readonly int Number;
        public Wanted(int number) : base("wanted " + number.ToString()) { Number = number; }
    }

    private sealed class Small { public long One = 1, Two = 2; }

    private static readonly object door = new object();
    private static readonly AutoResetEvent ping = new AutoResetEvent(false), pong = new AutoResetEvent(false);
    private static byte[] plugin;
    private static long turns, failures;
    private static long inside, entered, left;
    [ThreadStatic] private static object kept;

    private static void Fail(string what)
    {
        Interlocked.Increment(ref failures);
        Target.Say("failure " + what.Replace('\n', ' '));
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static void ThrowDeep(int depth, int number)
    {
        if (depth == 0) throw new Wanted(number);
        ThrowDeep(depth - 1, number);
    }

    private static void Throw(int turn)
    {
        for (int i = 0; i < 20; i++)
        {
            int caught = -1;
            try { ThrowDeep(turn % 30, i); }
            catch (Wanted wanted) { caught = wanted.Number; }
            if (caught != i) Fail("caught " + caught.ToString() + " and not " + i.ToString());
        }
        Thread.Sleep(1);
    }

    private static void Contend(int turn)
    {
        lock (door)
        {
            entered++;
            if (Interlocked.Increment(ref inside) != 1) Fail("two threads have the lock");
            if (turn % 2 == 0) Thread.Sleep(1);
            Interlocked.Decrement(ref inside);
            left++;
            if (entered != left) Fail("the lock's counts differ");
        }
    }

    private static void Serve(int turn)
    {
        ping.Set();
        pong.WaitOne();
        Thread.Sleep(1);
    }

    private static void Answer(int turn)
    {
        ping.WaitOne();
        pong.Set();
    }

    // A burst and a rest, so that events of allocations are on and off in turn.
    private static void Allocate(int turn)
    {
        var clock = Stopwatch.StartNew();
        long sum = 0, made = 0;
        while (clock.ElapsedMilliseconds < 300)
        {
            for (int i = 0; i < 1000; i++)
            {
                var small = new Small();
                kept = small;
                sum += small.One + small.Two;
                made++;
            }
            kept = new byte[1000];
            kept = new long[20000];
        }
        if (sum != made * 3) Fail("objects have other contents");
        Thread.Sleep(300);
    }

    private static void Collect(int turn)
    {
#if TRIMMED
        GC.Collect();
#else
        GC.Collect(turn % 3);
#endif
        Thread.Sleep(10);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Emitted(int seed)
    {
        var assembly = AssemblyBuilder.DefineDynamicAssembly(
            new AssemblyName("Emitted"), AssemblyBuilderAccess.RunAndCollect);
        var type = assembly.DefineDynamicModule("Emitted").DefineType("Made", TypeAttributes.Public);
        var method = type.DefineMethod("Run", MethodAttributes.Public | MethodAttributes.Static,
            typeof(int), new[] { typeof(int) });
        var code = method.GetILGenerator();
        code.Emit(OpCodes.Ldarg_0);
        code.Emit(OpCodes.Ldc_I4_3);
        code.Emit(OpCodes.Mul);
        code.Emit(OpCodes.Ret);
        var run = (Func<int, int>)type.CreateTypeInfo().AsType().GetMethod("Run")
            .CreateDelegate(typeof(Func<int, int>));
        return run(seed);
    }

    private static void Unload(int turn)
    {
        if (Emitted(turn) != unchecked(turn * 3)) Fail("code that was made returned another number");
#if !TRIMMED
        var context = new AssemblyLoadContext("plugin", true);
        var assembly = context.LoadFromStream(new MemoryStream(plugin));
        var work = (Func<int, int>)assembly.GetType("UnloadingPlugin").GetMethod("Work")
            .CreateDelegate(typeof(Func<int, int>));
        if (work(turn) != work(turn)) Fail("a plugin returned two numbers");
        context.Unload();
#endif
        if (turn % 4 == 0) { GC.Collect(); GC.WaitForPendingFinalizers(); }
        Thread.Sleep(5);
    }

    private static void Start(string name, Action<int> turn)
    {
        var thread = new Thread(() =>
        {
            for (int number = 0; ; number++)
            {
                try { turn(number); }
                catch (Exception error) { Fail(error.ToString()); }
                Interlocked.Increment(ref turns);
            }
        });
        thread.IsBackground = true;
        thread.Name = name;
        thread.Start();
    }

    private static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 0, 5);
        plugin = File.ReadAllBytes(arguments[1]);
        for (int i = 0; i < 2; i++) Start("throws", Throw);
        for (int i = 0; i < 3; i++) Start("contends", Contend);
        Start("serves", Serve);
        Start("answers", Answer);
        Start("allocates", Allocate);
        Start("collects", Collect);
        Start("unloads", Unload);
        Target.Ready();
        for (double passed = 0; passed < seconds; passed += 0.5)
        {
            Thread.Sleep(500);
            Target.Say("turns " + Interlocked.Read(ref turns).ToString()
                + " failures " + Interlocked.Read(ref failures).ToString());
        }
        return Interlocked.Read(ref failures) == 0 ? 0 : 1;
    }
}
