// Prints where it is: for every frame of its stack traces the method's token, the IL offset, and the
// file and line that the runtime makes of them.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Threading.Tasks;

public static class Program
{
    public static async Task Main()
    {
        Say(new StackTrace(true));
        Plain(3);
        await Later(1);
        foreach (var number in Numbers().Where(number => Local(number) > 0))
        {
            GC.KeepAlive(number);
        }
        try
        {
            Fail();
        }
        catch (Exception error) when (Filter(error))
        {
            Say(new StackTrace(error, true));
        }

        int Local(int number)
        {
            Say(new StackTrace(true));
            return number;
        }
    }

    private static void Plain(int depth)
    {
        if (depth > 0)
        {
            Plain(
                depth
                    - 1);
        }
        else
        {
            Say(new StackTrace(true));
        }
    }

    private static async Task<int> Later(int number)
    {
        Say(new StackTrace(true));
        await Task.Yield();
        Say(new StackTrace(true));
        try
        {
            await Task.Delay(1);
            Func<int, int> lambda = other =>
            {
                Say(new StackTrace(true));
                return other + number;
            };
            return lambda(2);
        }
        finally
        {
            Say(new StackTrace(true));
        }
    }

    private static IEnumerable<int> Numbers()
    {
        yield return 1;
        Say(new StackTrace(true));
#line 1000 "/elsewhere/Generated.cs"
        Say(new StackTrace(true));
        yield return 2;
#line hidden
        Say(new StackTrace(true));
#line default
        yield return 3;
    }

    private static void Fail()
    {
        using var list = Numbers().GetEnumerator();
        list.MoveNext();
        throw new InvalidOperationException();
    }

    private static bool Filter(Exception error)
    {
        Say(new StackTrace(true));
        return error.Message.Length > 0;
    }

    private static void Say(StackTrace trace)
    {
        foreach (var frame in trace.GetFrames())
        {
            var method = frame.GetMethod();
            if (method == null || method.Module.Name != "Lines.dll")
            {
                continue;
            }
            Console.WriteLine(string.Join(
                "\t",
                "frame",
                method.MetadataToken.ToString("x8"),
                frame.GetILOffset(),
                frame.GetFileName(),
                frame.GetFileLineNumber()));
        }
    }
}
