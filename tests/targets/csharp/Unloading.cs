// A server that makes code and lets go of it, all the time: collectible load contexts, dynamic
// assemblies that can be collected, and dynamic methods. Four threads do so and collect garbage.
// usage: Unloading seconds Plugin.dll
// The trimmed framework of .NET 10 has no collectible load contexts: dynamic assemblies stand for them.
//
// Every call's result is checked; what is wrong is counted and printed, like every exception.
using System;
using System.IO;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
using System.Threading;

internal static class Unloading
{
    private static byte[] plugin;
    private static long turns;
    private static long failures;
    private static volatile bool ends;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int StableBurn(int seed)
    {
        var value = (uint)seed | 1;
        for (int i = 0; i < 150000; i++)
        {
            value = value * 1664525 + 1013904223;
        }
        return (int)value;
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Collectible(int seed)
    {
#if TRIMMED
        return Emitted(seed);
#else
        var context = new AssemblyLoadContext("plugin", true);
        var assembly = context.LoadFromStream(new MemoryStream(plugin));
        var work = (Func<int, int>)assembly.GetType("UnloadingPlugin").GetMethod("Work")
            .CreateDelegate(typeof(Func<int, int>));
        int result = work(seed);
        context.Unload();
        return result;
#endif
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Emitted(int seed)
    {
        var assembly = AssemblyBuilder.DefineDynamicAssembly(
            new AssemblyName("Emitted"), AssemblyBuilderAccess.RunAndCollect);
        var type = assembly.DefineDynamicModule("Emitted").DefineType("Made", TypeAttributes.Public);
        var method = type.DefineMethod("Run", MethodAttributes.Public | MethodAttributes.Static,
            typeof(int), new[] { typeof(int) });
        Loop(method.GetILGenerator());
        var run = (Func<int, int>)type.CreateTypeInfo().AsType().GetMethod("Run")
            .CreateDelegate(typeof(Func<int, int>));
        return run(seed);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Dynamic(int seed)
    {
        var method = new DynamicMethod("Dynamic", typeof(int), new[] { typeof(int) }, typeof(Unloading).Module);
        Loop(method.GetILGenerator());
        return ((Func<int, int>)method.CreateDelegate(typeof(Func<int, int>)))(seed);
    }

    // value = argument; for (i = 20000; i != 0; i--) value = value * 3 + 1; return value
    private static void Loop(ILGenerator code)
    {
        var value = code.DeclareLocal(typeof(int));
        var i = code.DeclareLocal(typeof(int));
        var again = code.DefineLabel();
        code.Emit(OpCodes.Ldarg_0);
        code.Emit(OpCodes.Stloc, value);
        code.Emit(OpCodes.Ldc_I4, 20000);
        code.Emit(OpCodes.Stloc, i);
        code.MarkLabel(again);
        code.Emit(OpCodes.Ldloc, value);
        code.Emit(OpCodes.Ldc_I4_3);
        code.Emit(OpCodes.Mul);
        code.Emit(OpCodes.Ldc_I4_1);
        code.Emit(OpCodes.Add);
        code.Emit(OpCodes.Stloc, value);
        code.Emit(OpCodes.Ldloc, i);
        code.Emit(OpCodes.Ldc_I4_1);
        code.Emit(OpCodes.Sub);
        code.Emit(OpCodes.Dup);
        code.Emit(OpCodes.Stloc, i);
        code.Emit(OpCodes.Brtrue, again);
        code.Emit(OpCodes.Ldloc, value);
        code.Emit(OpCodes.Ret);
    }

    private static int Expected(int value)
    {
        for (int i = 20000; i != 0; i--)
        {
            value = value * 3 + 1;
        }
        return value;
    }

    private static void Check(string what, int seen, int wanted)
    {
        if (seen != wanted)
        {
            Interlocked.Increment(ref failures);
            Target.Say("failure " + what + ": " + seen.ToString() + " and not " + wanted.ToString());
        }
    }

    private static void Turns()
    {
        for (int seed = 1; !ends; seed++)
        {
            try
            {
                int wanted = Expected(seed);
                Check("collectible", Collectible(seed), wanted);
                Check("emitted", Emitted(seed), wanted);
                for (int i = 0; i < 3; i++)
                {
                    Check("dynamic", Dynamic(seed), wanted);
                }
                StableBurn(seed);
                if (seed % 4 == 0)
                {
                    GC.Collect();
                }
                if (seed % 16 == 0)
                {
                    GC.WaitForPendingFinalizers();
                }
            }
            catch (Exception error)
            {
                Interlocked.Increment(ref failures);
                Target.Say("failure " + error.ToString().Replace('\n', ' '));
            }
            Interlocked.Increment(ref turns);
        }
    }

    private static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 0, 5);
        plugin = File.ReadAllBytes(arguments[1]);
        var threads = new Thread[4];
        for (int i = 0; i < threads.Length; i++)
        {
            threads[i] = new Thread(Turns) { IsBackground = true, Name = "unloading " + i.ToString() };
            threads[i].Start();
        }
        Target.Ready();
        for (double passed = 0; passed < seconds; passed += 0.5)
        {
            Thread.Sleep(500);
            Target.Say("turns " + Interlocked.Read(ref turns).ToString()
                + " failures " + Interlocked.Read(ref failures).ToString());
        }
        ends = true;
        foreach (var thread in threads)
        {
            thread.Join();
        }
        Target.Say("ended turns " + turns.ToString() + " failures " + failures.ToString());
        Target.ReportCpu("Unloading");
        return failures == 0 ? 0 : 1;
    }
}
