// Runs the steady program within a program that comes without sources (DOTNET_STARTUP_HOOKS).
internal class StartupHook
{
    public static void Initialize() => Steady.Main(new string[0]);
}
