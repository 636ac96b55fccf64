// Makes dynamic methods all the time, calls each for a moment and lets go of it.
// usage: DropsMethods seconds per-second letters
//
// Each method's name has its number, and so many letters behind it. The highest number so far is printed twice a second.
using System;
using System.Diagnostics;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Threading;

internal static class DropsMethods
{
    private static long failures;
    private static string letters = "";

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Make(int number, int seed)
    {
        var method = new DynamicMethod(
            "Made" + number.ToString() + letters, typeof(int), new[] { typeof(int) }, typeof(DropsMethods).Module);
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

    private static int Main(string[] arguments)
    {
        double seconds = Target.Number(arguments, 0, 5);
        double perSecond = Target.Number(arguments, 1, 2000);
        letters = new string('x', (int)Target.Number(arguments, 2, 0));
        int wanted = Expected(7);
        int made = 0;
        double next = 0.5;
        Target.Ready();
        var watch = Stopwatch.StartNew();
        while (watch.Elapsed.TotalSeconds < seconds)
        {
            if (Make(made, 7) != wanted)
            {
                failures++;
            }
            made++;
            if (made > perSecond * watch.Elapsed.TotalSeconds)
            {
                Thread.Sleep(1);
            }
            if (watch.Elapsed.TotalSeconds > next)
            {
                next += 0.5;
                Target.Say("made " + made.ToString() + " failures " + failures.ToString());
            }
        }
        Target.Say("ended made " + made.ToString() + " failures " + failures.ToString());
        Target.ReportCpu("DropsMethods");
        return failures == 0 ? 0 : 1;
    }
}
