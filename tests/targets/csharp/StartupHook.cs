// Runs a test program inside a program that we do not have the source of: the runtime calls
// Initialize before that program's Main (DOTNET_STARTUP_HOOKS).
//
// STRATA_TEST_PROGRAM is the assembly, STRATA_TEST_ARGUMENTS its arguments, one a line. The entry
// point is called through a delegate: by reflection there would be frames of that between.
using System;
using System.Reflection;

internal class StartupHook
{
    public static void Initialize()
    {
        var program = Assembly.LoadFrom(Environment.GetEnvironmentVariable("STRATA_TEST_PROGRAM"));
        var lines = Environment.GetEnvironmentVariable("STRATA_TEST_ARGUMENTS") ?? "";
        var arguments = lines.Length > 0 ? lines.Split('\n') : new string[0];
        var main = (Func<string[], int>)Delegate.CreateDelegate(
            typeof(Func<string[], int>), program.EntryPoint);
        Environment.Exit(main(arguments));
    }
}
