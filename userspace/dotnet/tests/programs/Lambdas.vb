' Lambdas in every kind of method: for each a line with its token and the method it is written in.
Imports System
Imports System.Collections.Generic
Imports System.Linq
Imports Microsoft.VisualBasic
Imports System.Reflection
Imports System.Threading.Tasks

Public Class Till(Of TItem)
    Private ReadOnly first As Func(Of Integer) = Function() 1
    Private count As Integer = 3

    Public Sub New()
        Lambdas.Say(".ctor", first)
        Dim local = 5
        Lambdas.Say(".ctor", Function() local)
    End Sub

    Public ReadOnly Property Total As Integer
        Get
            Lambdas.Say("get_Total", Function() 2)
            Return 1
        End Get
    End Property

    ' The same name twice: the lambdas' own names do not tell these apart.
    Public Sub Overloaded(x As Integer)
        Lambdas.Say("Overloaded", Function() x)
    End Sub

    Public Sub Overloaded(x As String)
        Lambdas.Say("Overloaded", Function() x.Length)
    End Sub

    Public Sub Own()
        Lambdas.Say("Own", Function() count)
    End Sub

    Public Sub Generic(Of TOther)(other As TOther)
        Lambdas.Say("Generic", Function() other.GetHashCode())
        Lambdas.Say("Generic", Function() GetType(TOther).Name.Length)
    End Sub

    Public Sub Nested(x As Integer)
        Dim outer As Func(Of Func(Of Integer)) =
            Function()
                Dim y = x + 1
                Return Function() x + y
            End Function
        Lambdas.Say("Nested", outer)
        Lambdas.Say("Nested", outer())
        Dim without As Func(Of Func(Of Integer)) = Function() Function() 7
        Lambdas.Say("Nested", without())
    End Sub

    Public Async Function Pay(x As Integer) As Task
        Await Task.Yield()
        Lambdas.Say("Pay", Function() x)
        Lambdas.Say("Pay", Function() 4)
    End Function

    Public Iterator Function Lines(x As Integer) As IEnumerable(Of Integer)
        Yield 1
        Lambdas.Say("Lines", Function() x)
    End Function

    Public Function Waits(x As Integer) As Task(Of Integer)
        Dim waiting As Func(Of Task(Of Integer)) =
            Async Function()
                Await Task.Yield()
                Lambdas.Say("Waits", Function() x)
                Return x
            End Function
        Lambdas.Say("Waits", waiting)
        Return waiting()
    End Function
End Class

Public Module Lambdas
    Public Sub Say(expected As String, lambda As [Delegate])
        Dim method = lambda.Method
        ' A debug build's delegate of another form calls the lambda.
        Console.WriteLine("{0:x8}" & vbTab & "{1}" & vbTab & "{2}", method.MetadataToken, expected, method.Name)
    End Sub

    Public Sub Main()
        Dim till = New Till(Of String)()
        Dim total = till.Total
        till.Overloaded(3)
        till.Overloaded("x")
        till.Own()
        till.Generic("x")
        till.Nested(3)
        till.Pay(3).Wait()
        total += till.Lines(3).Count()
        total += till.Waits(3).Result
        Dim local = Function() total
        Say("Main", local)
        ' What holds the body of a lambda that waits.
        For Each type In GetType(Lambdas).Assembly.GetTypes()
            If type.Name.StartsWith("VB$StateMachine___Lambda$__") Then
                Dim body = type.GetMethod("MoveNext", BindingFlags.Instance Or BindingFlags.NonPublic)
                Console.WriteLine("{0:x8}" & vbTab & "Waits" & vbTab & "{1}", body.MetadataToken, type.Name)
            End If
        Next
    End Sub
End Module
