// Makes methods until there are very many.
// usage: ManyMethods dynamic|collectible|generics count [seconds-to-stay]
//
// dynamic: DynamicMethods, kept. collectible: types of assemblies that can be unloaded, 1,000
// methods each; half of them are unloaded before "ready". generics: instantiations of one method.
// Each method is called once, so each is compiled.
using System;
using System.Collections.Generic;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Threading;

internal static class ManyMethods
{
    private const int MethodsOfAType = 1000;

    private static readonly Type function = typeof(Func<ulong, ulong>);
    private static readonly List<object> kept = new List<object>();
    private static ulong sink;

    private static void WriteBody(ILGenerator code, int number)
    {
        code.Emit(OpCodes.Ldarg_0);
        code.Emit(OpCodes.Ldc_I4, number);
        code.Emit(OpCodes.Conv_I8);
        code.Emit(OpCodes.Mul);
        code.Emit(OpCodes.Ret);
    }

    private static void MakeDynamic(int count)
    {
        for (int i = 0; i < count; i++)
        {
            var method = new DynamicMethod("Dynamic_" + i.ToString(), typeof(ulong), new[] { typeof(ulong) },
                typeof(ManyMethods).Module, true);
            WriteBody(method.GetILGenerator(), i);
            var run = (Func<ulong, ulong>)method.CreateDelegate(function);
            sink += run(3);
            kept.Add(run);
        }
    }

    // Not inlined: what it has in registers must not keep an assembly alive.
    [MethodImpl(MethodImplOptions.NoInlining)]
    private static object MakeType(int number)
    {
        string name = "Collectible_" + number.ToString();
        var assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName(name), AssemblyBuilderAccess.RunAndCollect);
        TypeBuilder type = assembly.DefineDynamicModule(name).DefineType("Made." + name, TypeAttributes.Public);
        for (int i = 0; i < MethodsOfAType; i++)
        {
            MethodBuilder method = type.DefineMethod("Method_" + i.ToString(),
                MethodAttributes.Public | MethodAttributes.Static, typeof(ulong), new[] { typeof(ulong) });
            WriteBody(method.GetILGenerator(), i);
        }
        Type made = type.CreateType();
        for (int i = 0; i < MethodsOfAType; i++)
        {
            sink += ((Func<ulong, ulong>)made.GetMethod("Method_" + i.ToString()).CreateDelegate(function))(3);
        }
        return made;
    }

    private static void MakeCollectible(int count)
    {
        int types = count / MethodsOfAType;
        for (int i = 0; i < types; i++) kept.Add(MakeType(i));
        int half = types / 2;
        kept.RemoveRange(half, types - half);
        for (int i = 0; i < 5; i++)
        {
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        Target.Say("unloaded " + ((types - half) * MethodsOfAType).ToString());
    }

    // Types of numbers: a place of value types each, so that no two share code.
    private struct Zero
    {
    }

    private struct One<T>
    {
    }

    private struct Two<T>
    {
    }

    public static ulong Generic<T>(ulong x) => x + (ulong)typeof(T).Name.Length;

    private static Type Number(int number)
    {
        Type type = typeof(Zero);
        for (; number > 0; number >>= 1)
        {
            Type digit = (number & 1) == 0 ? typeof(One<>) : typeof(Two<>);
            type = digit.MakeGenericType(type);
        }
        return type;
    }

    private static void MakeGenerics(int count)
    {
        MethodInfo method = typeof(ManyMethods).GetMethod("Generic");
        for (int i = 0; i < count; i++)
        {
            sink += ((Func<ulong, ulong>)method.MakeGenericMethod(Number(i)).CreateDelegate(function))(3);
        }
    }

    private static int Main(string[] arguments)
    {
        int count = (int)Target.Number(arguments, 1, 10000);
        if (arguments[0] == "dynamic") MakeDynamic(count);
        else if (arguments[0] == "collectible") MakeCollectible(count);
        else MakeGenerics(count);
        Target.Say("made " + count.ToString());
        Target.Ready();
        Thread.Sleep((int)(Target.Number(arguments, 2, 0) * 1000));
        GC.KeepAlive(kept);
        Target.ReportCpu("ManyMethods");
        return 0;
    }
}
