// Native functions, some of them of one signature, and methods that call them.
using System;
using System.Reflection;
using System.Runtime.InteropServices;

public static class Imports
{
    [DllImport("libc", SetLastError = true)]
    private static extern int only(string text, ulong number);

    [DllImport("libc", EntryPoint = "its_real_name")]
    private static extern short renamed(string text, ulong number);

    [DllImport("libc", SetLastError = true)]
    private static extern int first(string text);

    [DllImport("libc", SetLastError = true)]
    private static extern int second(string text);

    [DllImport("libc", SetLastError = true)]
    private static extern int withType(int number, Action action);

    private static int Managed(string text) => text.Length;

    private static int CallsFirst(string text)
    {
        Console.WriteLine(text);
        return first(text);
    }

    private static int CallsBoth(string text)
    {
        first(text);
        return second(text);
    }

    private static short CallsRenamed(string text)
    {
        return renamed(text, 3);
    }

    private static int CallsDifferent(string text)
    {
        only(text, 3);
        return second(text);
    }

    private static int CallsWithType(Action action)
    {
        return withType(3, action);
    }

    private static int CallsManaged(string text)
    {
        return Managed(text) + second(text);
    }

    private static int CallsIndirectly(string text)
    {
        Func<string, int> function = first;
        return function(text);
    }

    public static void Main()
    {
        foreach (MethodInfo method in typeof(Imports).GetMethods(BindingFlags.Static | BindingFlags.NonPublic))
        {
            Console.WriteLine("{0}\t{1:x8}\t{2}", method.Name, method.MetadataToken, method.GetMethodBody()?.GetILAsByteArray().Length ?? 0);
        }
    }
}
