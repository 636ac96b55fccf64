// Every kind of method that C# 8 has, each spinning for a while, with the name a reader expects.
// usage: Names seconds-each [rounds]
//
// First a line "expect NAME" for each, then "ready", then they run in turn.
using System;
using System.Collections.Generic;
using System.Threading.Tasks;

internal static class Names
{
#if TRIMMED
    private static int Main(string[] arguments)
    {
        Spin.Prepare(Target.Number(arguments, 0, 0.1));
        var forms = new List<Form>();
        Shop.Forms.Add(forms);
        Shop.CompiledForms.Add(forms);
        Announce(forms);
        for (int round = 0; round < (int)Target.Number(arguments, 1, 1); round++)
        {
            foreach (Form form in forms) form.Run();
        }
        Target.ReportCpu("Names");
        return 0;
    }
#else
    // The wrapper that the compiler makes of it is a form, too.
    private static async Task<int> Main(string[] arguments)
    {
        Spin.Prepare(Target.Number(arguments, 0, 0.1));
        var forms = new List<Form> { new Form("Names.Main", () => { }) };
        Shop.Forms.Add(forms);
        Shop.CompiledForms.Add(forms);
        Shop.AsyncForms.Add(forms);
        Announce(forms);
        for (int round = 0; round < (int)Target.Number(arguments, 1, 1); round++)
        {
            foreach (Form form in forms) form.Run();
            await Task.Yield();
        }
        Target.ReportCpu("Names");
        return 0;
    }
#endif

    private static void Announce(List<Form> forms)
    {
        foreach (Form form in forms) Target.Say("expect " + form.Name);
        Target.Ready();
    }
}

internal sealed class Form
{
    public readonly string Name;
    private readonly Action run;

    public Form(string name, Action run)
    {
        Name = name;
        this.run = run;
    }

    public void Run()
    {
        run();
    }
}

// Uses CPU in its caller. Not a method of the forms: those are its callers.
internal static class Spin
{
    private static double seconds;
    public static ulong Sink;

    public static void Prepare(double each)
    {
        seconds = each;
    }

    [System.Runtime.CompilerServices.MethodImpl(System.Runtime.CompilerServices.MethodImplOptions.NoInlining)]
    public static int Here()
    {
        double end = Target.Now + seconds;
        ulong x = Sink;
        do
        {
            for (int i = 0; i < 20000; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
        }
        while (Target.Now < end);
        Sink = x;
        return 1;
    }

    // A part of the time, for what must be called more than once.
    public static double End(double part)
    {
        return Target.Now + seconds * part;
    }
}
