// A program that goes on until it is killed, and compiles something new now and then: ordinary
// methods, a generic one and a dynamic one.
using System;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Threading;

public static class Steady
{
    private static long total;

    private static T Same<T>(T value) => value;

    [MethodImpl(MethodImplOptions.NoInlining)]
    private static int Work(int count)
    {
        int sum = 0;
        for (int i = 0; i < count; i++)
            sum += Same(i) % 7;
        return sum;
    }

    private static Func<int, int> Compile(int number)
    {
        var method = new DynamicMethod("Dynamic" + number, typeof(int), new[] { typeof(int) });
        var code = method.GetILGenerator();
        code.Emit(OpCodes.Ldarg_0);
        code.Emit(OpCodes.Ldc_I4, number);
        code.Emit(OpCodes.Add);
        code.Emit(OpCodes.Ret);
        return (Func<int, int>)method.CreateDelegate(typeof(Func<int, int>));
    }

    public static int Main(string[] arguments)
    {
        Console.WriteLine("running");
        Console.Out.Flush();
        for (int round = 0; ; round++)
        {
            total += Work(1000);
            if (round % 20 == 0)
                total += Compile(round)(1);
            Thread.Sleep(5);
        }
    }
}
